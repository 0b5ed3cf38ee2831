from __future__ import annotations

from hypothesis import HealthCheck, settings

# A loaded machine is no defect: how long an example takes says nothing here.
settings.register_profile(
    "rankwise", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("rankwise")

# Options of pytest within pytest: what is installed for other tests stays out.
ALONE = ("-p", "no:randomly", "-p", "no:asyncio", "-p", "no:timeout")
