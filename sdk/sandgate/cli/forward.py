"""`sandgate port-forward`: a port of this machine that leads into a sandbox, for HTTP."""

import click

from sandgate import Gateway
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import ClaimName, ClaimType, PortsType
from sandgate.cli.show import show_json


@click.command("port-forward")
@click.argument("claim", type=ClaimType())
@click.argument("ports", metavar="[LOCAL:]PORT...", type=PortsType(), nargs=-1, required=True)
@json_option
@gateway_options
def port_forward(
    claim: ClaimName, ports: tuple[tuple[int, int], ...], as_json: bool, gateway: Gateway
) -> None:
    """Serve ports of the sandbox of CLAIM on 127.0.0.1, until Ctrl-C; 0:PORT takes any.

    HTTP and WebSocket pass, other protocols do not.
    """
    import asyncio

    asyncio.run(_serve(claim, ports, as_json=as_json, gateway=gateway))


async def _serve(
    claim: ClaimName, ports: tuple[tuple[int, int], ...], *, as_json: bool, gateway: Gateway
) -> None:
    import asyncio

    from sandgate import AsyncSandboxes
    from sandgate._forward import Forwarder

    async with AsyncSandboxes(gateway) as sandboxes:
        sandbox = await sandboxes.get(claim.name, namespace=claim.namespace)
        forwarders = [Forwarder(sandbox, port) for _, port in ports]
        try:
            for forwarder, (local, port) in zip(forwarders, ports, strict=True):
                url = await forwarder.listen(local)
                if as_json:
                    show_json({"url": url, "port": port})
                else:
                    click.echo(f"{url} -> {port}")
            await asyncio.Event().wait()
        finally:
            for forwarder in forwarders:
                await forwarder.close()
