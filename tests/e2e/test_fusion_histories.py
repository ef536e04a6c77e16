"""Transactional histories on three servers that write the same tables, while one is killed and another stands still for longer
than its lease: the checker of tests/isolation finds nothing that an isolation level forbids, and nothing out of order.
"""

import random

from isolation.campaign import MIXED, Plan
from isolation.faults import SERVER_KILL, SERVER_LONG_PAUSE
from isolation.several import SeveralCampaign
from strata_cli import paths

SECONDS = 12.0


def plan(seed: int, name: str, faults: int) -> Plan:
    return Plan(f"{seed}/{name}", MIXED, clients=9, keys=8, durable=True, kills=0, long_share=0.1, faults=faults)


def test_histories_on_three_servers() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    campaign = SeveralCampaign(paths.BUILD / "e2e" / "fusion-histories", 3, seed=str(seed))
    campaign.start()
    try:
        quiet = campaign.one(plan(seed, "quiet", 0), SECONDS / 3)
        assert quiet.ok, [str(problem) for problem in quiet.problems]
        for fault in (SERVER_KILL, SERVER_LONG_PAUSE):
            campaign.fault_kinds = (fault,)
            report = campaign.one(plan(seed, fault, 1), SECONDS)
            assert report.ok, [str(problem) for problem in report.problems]
            assert report.committed > 50
            assert campaign.struck[fault] == 1
        families = campaign.family(plan(seed, "families", 1), SECONDS / 2)
        assert families.ok, families.problems
    finally:
        campaign.stop()
