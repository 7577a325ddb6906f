"""OneShotSums: what sums between a node's devices take in an engine that serves, which has a kernel of its own.

Every member reads what all others have over its link and adds it, all in one kernel: of n members with S bytes each

    seconds = start + (n - 1) * hop + (n - 1) S / (share * link)

Large sums are left to NCCL, as is all that is no sum, or leaves the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.costs.collective.collective import collective_table
from meshwright.costs.collective.curve import Pipe
from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.cost import Cost, Flow
from meshwright.ir.table import Exchange
from meshwright.specs.plan.prediction import weakest

# Fitted on the kernel of TensorRT-LLM 1.2.0rc1 on 2 and 4 H100, 256 bytes to 1 MiB (26 rows, missed by 3.5 % in the root of
# the mean square): ai-dynamo/aiconfigurator @302edbc, src/aiconfigurator/systems/data/h100_sxm/trtllm/1.2.0rc1/
# custom_allreduce_perf.txt.bak, Apache-2.0; its message_size counts numbers of 16 bits. No table of 8 devices or of another
# chip could be read: there the constants are extrapolated.
START_S, HOP_S, LINK_SHARE = 3.2e-6, 0.08e-6, 0.71


@dataclass(frozen=True, eq=False)
class OneShotSums:
    """A communication model: the quicker of NCCL and the engine's own kernel, where a switch joins a node's devices."""

    links: NcclCollectives

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """As NCCL's, unless it is a sum that is made sooner in one kernel."""
        cost = self.links.exchange_cost(exchange, num_bytes, devices)
        if not self._is_node_sum(exchange, devices):
            return cost
        node, peers = self.links.cluster.levels[0], len(devices) - 1
        pipe = Pipe(START_S, HOP_S, LINK_SHARE * node.bandwidth_bytes_per_s)
        seconds = pipe.seconds(peers, peers * num_bytes)
        if seconds >= cost.seconds:
            return cost
        return replace(cost, seconds=seconds, basis=weakest(cost.basis, "extrapolated"))

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """As NCCL's."""
        return self.links.flows(exchange, num_bytes, devices)

    def _is_node_sum(self, exchange: Exchange, devices: tuple[int, ...]) -> bool:
        """Do several devices of one node, all behind its switch, add what each of them has?"""
        node, members = self.links.cluster.levels[0], set(devices)
        if len(members) < 2 or node.is_paired or node.is_shared:
            return False
        is_near = len({device // node.num_devices for device in members}) == 1
        return is_near and collective_table(exchange, len(devices)) == "all_reduce"
