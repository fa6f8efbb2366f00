"The manager over a Ray cluster of several nodes on this machine, one of which is killed."
import socket

import pytest

from tests.waiting import until
from uitars_nb.core.types import Action
from uitars_nb.sandbox.base import EnvironmentFailure
from uitars_nb.sandbox.manager.client import RemoteSession
from uitars_nb.sandbox.manager.manager import Manager
from uitars_nb.sandbox.manager.workforce import KindConfig, ManagerConfig

ray = pytest.importorskip('ray', reason="no Ray: pip install 'uitars_nb[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


PORTS = 'metrics_agent_port', 'metrics_export_port', 'dashboard_agent_listen_port', 'runtime_env_agent_port'


def small():
    "A node that needs little, with ports chosen here: Ray gives its own agents 15 seconds to choose theirs, which a busy machine does not keep."
    sockets = [socket.create_server(('127.0.0.1', 0)) for _ in PORTS]
    ports = {name: s.getsockname()[1] for name, s in zip(PORTS, sockets)}
    for s in sockets: s.close()
    return dict(object_store_memory=80 * 2 ** 20) | ports


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0, include_dashboard=False, **small()))
    try:
        cluster.nodes = [cluster.add_node(num_cpus=1, resources=dict(sandbox=1), **small()) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster
    finally: down(cluster)


def down(cluster):
    ray.shutdown()
    cluster.shutdown()


def session(lease):
    class Nobody: tls, sessions = {}, {}
    return RemoteSession(Nobody(), lease)


def nodes():
    "Which node each worker runs on."
    actors = ray._private.state.actors().values()
    return {a['Name']: a['Address']['NodeID'] for a in actors if a['State'] == 'ALIVE'}


async def test_a_node_is_killed_in_mid_run(cluster, tmp_path):
    kinds = dict(simulated=KindConfig(slots=2, warm=2, most=2, resources=dict(CPU=1, sandbox=1)))
    config = ManagerConfig(str(tmp_path/'m'), kinds, start=120, place='uitars_nb.sandbox.manager.ray:RayLauncher', place_options=dict(cluster=cluster.address))
    manager, told = await Manager(config).start(), {}
    manager.listeners['ann'].add(lambda id, reason: told.update({id: reason}))
    leases = [await manager.acquire('ann', 'simulated', wait=120) for _ in range(4)]
    for o in leases: await session(o).act(Action('type', dict(content=o.id)))
    assert len({o.url for o in leases}) == 2 and len({*nodes().values()}) == 2   # a worker on each node

    await manager.stop()   # the next manager finds the actors by their names
    manager = await Manager(config).start()
    manager.listeners['ann'].add(lambda id, reason: told.update({id: reason}))
    await until(lambda: all(o.link.url for o in manager.leases.values()) and len(manager.leases) == 4, 120)
    assert {(await session(o).observe()).title for o in leases} == {o.id for o in leases}

    doomed = next(n for n in cluster.nodes if n.node_id == nodes()[manager.leases[leases[0].id].link.row.id])
    mine = {o.id for o in leases if o.url == leases[0].url}
    cluster.remove_node(doomed, allow_graceful=False)
    await until(lambda: {*told} == mine, 120)
    assert {*told.values()} == {'its worker died'}
    for o in leases:
        if o.id in mine:
            with pytest.raises(EnvironmentFailure): await session(o).observe()
        else: assert (await session(o).observe()).title == o.id

    cluster.add_node(num_cpus=1, resources=dict(sandbox=1), **small())
    new = await manager.acquire('ann', 'simulated', wait=120)
    assert (await session(new).observe()).title == ''
    assert await manager.drain(0) == 3
    await until(lambda: not nodes(), 120)
    await manager.stop()
