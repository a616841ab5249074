"""What may the outside world say to a server on Flower? The calls of devices, of a bounded size, and nothing else.

A reverse proxy, nginx, stands on the public address; the server behind it listens on loopback only. TLS ends at the proxy, and
is begun again to the server, whose certificate is checked. Devices sign what they send, and the proxy passes that on as it is.
Nothing is written to disk.
"""

import shutil
from pathlib import Path

from perfeds2.deployment.flower.site import Site
from perfeds2.errors import InputError

LITTLE = (  # calls that carry names and numbers
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "pull-object",
    "confirm-message-received",
)  # fmt: skip
CONFIG = """\
# Made by: perfeds2 federate proxy. Runs by itself (nginx -c THIS_FILE), as any user, beside other nginx servers.
daemon off;
pid {home}/proxy.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {home}/proxy;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/proxy;
    uwsgi_temp_path {home}/proxy;
    scgi_temp_path {home}/proxy;
    upstream superlink {{ server {server} max_conns=128; keepalive 32; }}
    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        client_header_timeout 20s;
        client_body_timeout 20s;
        client_max_body_size 64k;
        client_body_buffer_size 64k;
        proxy_max_temp_file_size 0;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate {authority};
        location / {{ return 403; }}
        location ~ ^/v1/fleet/({little})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://superlink/v1/fleet/$1;
        }}
        location = /v1/fleet/push-object {{
            limit_except POST {{ deny all; }}
            client_max_body_size 8m;
            proxy_request_buffering off;  # the server looks at the head, and reads on only if it knows the device
            proxy_pass https://superlink/v1/fleet/push-object;
        }}
    }}
}}
"""


def proxy_config(site: Site, listen: str) -> str:
    """Of nginx, for devices that call ``listen`` and a server at the site's address."""
    files = site.credentials
    return CONFIG.format(
        home=site.home.resolve(),
        server=site.address,
        listen=listen,
        certificate=files.certificate.resolve(),
        key=files.certificate_key.resolve(),
        authority=files.authority.resolve(),
        little="|".join(LITTLE),
    )


def proxy_command(config: Path) -> list[str]:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        raise InputError("the proxy needs nginx: apt install nginx-light (or your system's package).")
    return [nginx, "-e", "stderr", "-c", str(config.resolve())]
