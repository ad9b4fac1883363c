"""`sandgate claim`, `list`, `renew`, `release` and `pools`."""

from dataclasses import asdict

import click

from sandgate import Gateway, Sandboxes
from sandgate._sandbox.sandboxes import OnEmpty
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import DEFAULT_NAMESPACE, ClaimName, ClaimType, PairType
from sandgate.cli.show import COLUMNS, pool_rows, show_json, show_table
from sandgate.types import Claim

_NOT_ISOLATED = (
    "sandgate: isolation none: nothing keeps the code in this sandbox from the gateway's machine"
)


@click.command()
@click.argument("pool")
@click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True)
@click.option("--name", help="Name of the claim; by default one is made up.")
@click.option("--lease", type=float, metavar="SECONDS", help="End the claim after this time.")
@click.option("--idle", type=float, metavar="SECONDS", help="End it after so long without use.")
@click.option("--wait", type=float, metavar="SECONDS", help="Wait this long for a ready sandbox.")
@click.option("--on-empty", type=click.Choice(["wait", "fail", "cold"]))
@click.option("--label", "labels", type=PairType(), multiple=True, metavar="KEY=VALUE")
@json_option
@gateway_options
def claim(
    pool: str,
    namespace: str,
    name: str | None,
    lease: float | None,
    idle: float | None,
    wait: float | None,
    on_empty: OnEmpty | None,
    labels: tuple[tuple[str, str], ...],
    as_json: bool,
    gateway: Gateway,
) -> None:
    """Claim a sandbox from POOL; it stays claimed until its release or the end of its lease."""
    with Sandboxes(gateway) as sandboxes:
        sandbox = sandboxes.claim(
            pool,
            namespace=namespace,
            name=name,
            lease_seconds=lease,
            idle_seconds=idle,
            labels=dict(labels) or None,
            wait_seconds=wait,
            on_empty=on_empty,
        )
    if sandbox.isolation == "none":
        click.echo(_NOT_ISOLATED, err=True)
    if not as_json:
        click.echo(f"{sandbox.namespace}/{sandbox.claim} {sandbox.id}")
        return
    members = asdict(sandbox.record)
    show_json({"claim": members.pop("name"), **members})


@click.command()
@click.argument("claims", metavar="CLAIM...", type=ClaimType(), nargs=-1, required=True)
@json_option
@gateway_options
def release(claims: tuple[ClaimName, ...], as_json: bool, gateway: Gateway) -> None:
    """End each CLAIM and destroy its sandbox; one that is gone already is no error."""
    with Sandboxes(gateway) as sandboxes:
        for claim in claims:
            sandboxes.release(claim.name, namespace=claim.namespace)
    if as_json:
        show_json({"released": [f"{claim.namespace}/{claim.name}" for claim in claims]})


@click.command()
@click.argument("claims", metavar="CLAIM...", type=ClaimType(), nargs=-1, required=True)
@click.option("--lease", type=float, metavar="SECONDS", help="Its new length; else as it was.")
@json_option
@gateway_options
def renew(
    claims: tuple[ClaimName, ...], lease: float | None, as_json: bool, gateway: Gateway
) -> None:
    """Begin the lease of each CLAIM anew."""
    with Sandboxes(gateway) as sandboxes:
        renewed = [
            sandboxes.get(claim.name, namespace=claim.namespace).renew(lease_seconds=lease)
            for claim in claims
        ]
    if as_json:
        show_json({"claims": [asdict(record) for record in renewed]})
        return
    for record in renewed:
        click.echo(f"{record.namespace}/{record.name} {_until(record)}")


@click.command("list")
@click.option("--namespace", help="Only claims of this namespace.")
@click.option("--pool", help="Only claims of this pool.")
@click.option("--selector", metavar="TEXT", help="Only claims with such labels: `app=web,!old`.")
@json_option
@gateway_options
def list_(
    namespace: str | None, pool: str | None, selector: str | None, as_json: bool, gateway: Gateway
) -> None:
    """List the live claims, oldest first."""
    with Sandboxes(gateway) as sandboxes:
        found = sandboxes.list(namespace=namespace, pool=pool, label_selector=selector)
    if as_json:
        show_json({"claims": [asdict(record) for record in found]})
        return
    show_table(
        ["CLAIM", "SANDBOX", "POOL", "STATE", "UNTIL", "LABELS"],
        [
            [
                f"{record.namespace}/{record.name}",
                record.sandbox,
                record.pool,
                record.state,
                _until(record),
                ",".join(f"{key}={value}" for key, value in record.labels.items()) or "-",
            ]
            for record in found
        ],
    )


@click.command()
@json_option
@gateway_options
def pools(as_json: bool, gateway: Gateway) -> None:
    """List the pools of the gateway."""
    with Sandboxes(gateway) as sandboxes:
        found = sandboxes.pools()
    if as_json:
        show_json({"pools": [asdict(pool) for pool in found]})
        return
    show_table(COLUMNS, pool_rows(found))


def _until(record: Claim) -> str:
    return "-" if record.expires_at is None else f"{record.expires_at:%Y-%m-%d %H:%M:%S}Z"
