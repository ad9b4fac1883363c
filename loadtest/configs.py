"""Settings of every proxy for the same job, written for a number of sandboxes."""

from loadtest.stubs import PORT, address

_ENVOY = "type.googleapis.com/envoy.extensions.filters"

ROUTING_FIELDS = ("X-Sandbox-ID", "X-Sandbox-Namespace", "X-Sandbox-Port", "X-Sandbox-Token")


MANY = 1000
"""Above this many sandboxes the kept connections are counted for all of them together."""


def sandgate(sandboxes: int) -> str:
    """Return a file of static sandboxes."""
    lines = [
        f"  - {{id: sb-{index}, uid: u-{index}, host: {address(index)}}}\n"
        for index in range(sandboxes)
    ]
    return "sandboxes:\n" + "".join(lines)


def nginx(port: int, sandboxes: int, *, keep_alive: bool) -> str:
    """Return nginx.conf: a group with kept connections for each sandbox, or an address."""
    hash_size = max(64, sandboxes * 4)
    kept = 128 if sandboxes <= MANY else 8  # nginx makes room for all of them at its start
    if keep_alive:
        groups = "".join(
            f"  upstream sb-{i} {{ server {address(i)}:{PORT}; keepalive {kept};"
            " keepalive_requests 10000000; }\n"
            for i in range(sandboxes)
        )
        route = f"  map $http_x_sandbox_id $to {{ {_map('sb-{i}', sandboxes)} }}\n"
    else:
        groups = ""
        route = f"  map $http_x_sandbox_id $to {{ {_map(None, sandboxes)} }}\n"
    fields = "".join(f'      proxy_set_header {name} "";\n' for name in ROUTING_FIELDS)
    return (
        "worker_processes 1;\ndaemon off;\nmaster_process off;\npid nginx.pid;\n"
        "error_log stderr crit;\nevents { worker_connections 16384; }\nhttp {\n"
        "  access_log off;\n  client_body_temp_path body;\n  proxy_temp_path proxy;\n"
        "  fastcgi_temp_path fcgi;\n  uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n"
        f"  map_hash_max_size {hash_size};\n  map_hash_bucket_size 128;\n{groups}{route}"
        f"  server {{\n    listen 127.0.0.1:{port} backlog=4096 reuseport;\n"
        "    keepalive_requests 10000000;\n    keepalive_timeout 620;\n"
        "    client_max_body_size 0;\n    location / {\n"
        "      proxy_http_version 1.1;\n      proxy_request_buffering off;\n"
        "      proxy_buffer_size 64k;\n      proxy_buffers 8 64k;\n"
        "      proxy_max_temp_file_size 0;\n"  # else it may write a download to the disk
        '      proxy_set_header Connection "";\n'
        f"{fields}      proxy_pass http://$to;\n    }}\n  }}\n}}\n"
    )


def _map(pattern: str | None, sandboxes: int) -> str:
    pairs = (
        f"sb-{i} {pattern.format(i=i) if pattern else f'{address(i)}:{PORT}'};"
        for i in range(sandboxes)
    )
    return " ".join(pairs)


def haproxy(port: int, sandboxes: int) -> str:
    """Return haproxy.cfg.

    Without pool-low-conn it was seen to reconnect half the time. The ratios let it keep more
    than a quarter of its descriptors as idle connections, which many sandboxes need.
    """
    fields = "".join(f"  http-request del-header {name}\n" for name in ROUTING_FIELDS)
    backends = "".join(
        f"backend sb-{i}\n  http-reuse always\n"
        f"  server s {address(i)}:{PORT} pool-max-conn 4000 pool-low-conn 4000"
        " pool-purge-delay 60s\n"
        for i in range(sandboxes)
    )
    return (
        "global\n  nbthread 1\n  maxconn 8000\n  tune.bufsize 65536\n"
        "  tune.pool-low-fd-ratio 90\n  tune.pool-high-fd-ratio 95\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 620s\n"
        "  timeout server 180s\n  option http-keep-alive\n"
        "  option http-no-delay\n"  # else it holds back each piece of a stream
        f"frontend in\n  bind 127.0.0.1:{port} backlog 4096\n"
        f"  http-request set-var(txn.to) req.hdr(X-Sandbox-ID)\n{fields}"
        f"  use_backend %[var(txn.to)]\n{backends}"
    )


def envoy(port: int, sandboxes: int) -> str:
    """Return envoy.yaml: one static cluster for each sandbox, chosen by the field."""
    clusters = "".join(
        f"  - {{name: sb-{i}, type: STATIC, connect_timeout: 5s, load_assignment: "
        f"{{cluster_name: sb-{i}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: "
        f"{{socket_address: {{address: {address(i)}, port_value: {PORT}}}}}}}}}]}}]}}}}\n"
        for i in range(sandboxes)
    )
    removed = ", ".join(name.lower() for name in ROUTING_FIELDS)
    return f"""\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {_ENVOY}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          generate_request_id: false
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": {_ENVOY}.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster_header: x-sandbox-id, timeout: 180s}}
                request_headers_to_remove: [{removed}]
  clusters:
{clusters}"""


def caddy(port: int, sandboxes: int) -> str:
    """Return a Caddyfile that maps the field to an address."""
    pairs = "\n".join(f"    sb-{i} {address(i)}:{PORT}" for i in range(sandboxes))
    removed = "\n".join(f"    header_up -{name}" for name in ROUTING_FIELDS)
    return (
        "{\n  admin off\n  auto_https off\n  persist_config off\n}\n"
        f"http://127.0.0.1:{port}, http://localhost:{port} {{\n"
        f"  map {{header.X-Sandbox-ID}} {{to}} {{\n{pairs}\n  }}\n"
        f"  reverse_proxy {{to}} {{\n{removed}\n    transport http {{\n"
        "      keepalive_idle_conns_per_host 128\n      keepalive_idle_conns 20000\n    }\n  }\n}\n"
    )
