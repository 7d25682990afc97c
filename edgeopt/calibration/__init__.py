"""Calibration and evaluation sets: described in TOML, checked once, streamed one sample at a time."""

from edgeopt.calibration.embedded import embedded_sets as embedded_sets
from edgeopt.calibration.first_pass import check as check
from edgeopt.calibration.given import Run as Run
from edgeopt.calibration.given import starts as starts
from edgeopt.calibration.labelling import groups as groups
from edgeopt.calibration.labelling import labels as labels
from edgeopt.calibration.labelling import targets as targets
from edgeopt.calibration.load import load_set as load_set
from edgeopt.calibration.metric import scorer as scorer
from edgeopt.calibration.stream import samples as samples
from edgeopt.calibration.types import DataSet as DataSet
