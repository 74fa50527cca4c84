"""The explicit-state model still sees what is wrong where a rule is left out. All of its cases: `make model`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "stopped-and-handed-back",
    "1-state-and-retry-fence",
    "2-refused",
    "3-disown",
    "4-adoption",
    "5-claim-lost",
    "7-reconciler",
    "8-drops",
    "8-verdict",
    "9-returned",
    "10-one-number",
    "no-recovery",
)


def test_a_rule_that_is_left_out_is_a_violation():
    """Without `reconciler="off"` in docs/model/cases.py the reconciler finds what is lost in most of them."""
    ran = subprocess.run(
        [sys.executable, "-B", str(ROOT / "docs/model/cases.py"), *QUICK], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
