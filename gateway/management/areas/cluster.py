"""The service `Cluster` of a node that is part of none. `gateway.node.cluster_member` has that of other nodes."""

import grpc

from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.status import RequestError


class NoCluster:
    """Implements the service `Cluster`."""

    async def get_cluster(self, _request: pb.GetClusterRequest, _manager: Manager) -> pb.ClusterStatus:
        raise _no_cluster()

    async def change_leader(self, _request: pb.ChangeLeaderRequest, _manager: Manager) -> pb.ChangeLeaderReply:
        raise _no_cluster()

    async def drain_node(self, _request: pb.DrainNodeRequest, _manager: Manager) -> pb.DrainNodeReply:
        raise _no_cluster()

    async def undrain_node(self, _request: pb.UndrainNodeRequest, _manager: Manager) -> pb.UndrainNodeReply:
        raise _no_cluster()

    async def promote_site(self, _request: pb.PromoteSiteRequest, _manager: Manager) -> pb.PromoteSiteReply:
        raise _no_cluster()


def _no_cluster() -> RequestError:
    return RequestError(grpc.StatusCode.FAILED_PRECONDITION, "this node is not part of a cluster: it has no [cluster]")
