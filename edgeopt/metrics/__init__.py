"""Task metrics: what is judged against labels, each in one small file with its definition and its rule for ties."""

from edgeopt.metrics.correlation import Pair as Pair
from edgeopt.metrics.interval import half_width as half_width
from edgeopt.metrics.interval import mean_half_width as mean_half_width
from edgeopt.metrics.scorer import Label as Label
from edgeopt.metrics.scorer import Scorer as Scorer
from edgeopt.metrics.spec import NAMES as NAMES
from edgeopt.metrics.spec import MetricSpec as MetricSpec
from edgeopt.metrics.spec import named as named
from edgeopt.metrics.spec import scorer as scorer
from edgeopt.metrics.tally import Judged as Judged
from edgeopt.metrics.tally import Rows as Rows
from edgeopt.metrics.tally import judged as judged
