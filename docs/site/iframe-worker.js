// The search runs in a worker, and a page opened as a file may start none: let a hidden frame be one.
if (location.protocol === "file:") {
  // Such a worker stops the page for a second while it indexes the site: let it wait until the reader does something.
  const touched = new Promise((done) => {
    for (const kind of ["keydown", "pointerdown"]) addEventListener(kind, done, { once: true, capture: true });
  });
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" });
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      };
      const script = Object.assign(inside.document.createElement("script"), { src: String(url) });
      const loaded = new Promise((done, failed) => Object.assign(script, { onload: done, onerror: failed }));
      this.ready = loaded.then(() => touched);
      this.ready.catch((error) => this.onerror?.(error));
      inside.document.body.append(script);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
