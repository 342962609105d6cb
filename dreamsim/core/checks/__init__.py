"""The contracts as programs that anyone can run on their own parts.

Each check returns what it understood, one plain sentence a line, and raises ``Broken``
with the expected, the found and the cure at the first thing that is wrong.
"""

from dreamsim.core.checks.expect import Broken
from dreamsim.core.checks.learned import check_policy, check_world_model, random_segment
from dreamsim.core.checks.real import check_env, check_episodes

__all__ = ["Broken", "check_env", "check_episodes", "check_policy", "check_world_model", "random_segment"]
