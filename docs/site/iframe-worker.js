// The search runs in a worker, and a page opened as a file may start none: let a hidden frame be one.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const inner = this.inside.document;
      inner.open();
      inner.write("<!doctype html><body></body>");
      inner.close();
      const load = (address) => new Promise((done, failed) => {
        const script = inner.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        inner.body.append(script);
      });
      this.inside.importScripts = (...addresses) => addresses.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(String(url));
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
