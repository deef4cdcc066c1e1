"""Imported first in the forkserver: from then on it dies with the controller, and ranks with it.

The one module whose import acts, because a forkserver can be told what to import and nothing else.
"""

from paceline.rank.process import die_with_parent

die_with_parent()
