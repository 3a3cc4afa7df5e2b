"""What a client relies on of an API server: the tests that run with the stand-in, with kube-apiserver."""

from tests.api_contract.test_objects import *  # noqa: F403, I001 - in the order in which they use up versions
from tests.api_contract.test_collections import *  # noqa: F403
from tests.api_contract.test_slices import *  # noqa: F403
from tests.api_contract.test_patches import *  # noqa: F403
from tests.api_contract.test_publishing import *  # noqa: F403
from tests.api_contract.test_traces import *  # noqa: F403
