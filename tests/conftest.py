"""What every test shares."""

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples at every run, so that a run that fails says something about the change at hand. New ones come with
# `pytest --hypothesis-profile explore`.
settings.register_profile("draftwire", settings.get_profile("explore"), derandomize=True)
settings.load_profile("draftwire")
