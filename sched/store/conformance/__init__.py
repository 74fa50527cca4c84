"""What any store must do, as pytest tests over the protocols of `rota.sched.store.protocols`.

A store passes if all of them do. In a test module of its own it says where an empty one is to be had:

    import pytest
    from rota.sched.store.conformance import *
    from rota.sched.store.conformance import House

    @pytest.fixture
    def house(tmp_path):
        yield House(MyTestbed(tmp_path))

`Testbed` says what the suite needs beside the protocols: that time passes, and that a member falls silent, without
waiting for either. `rota.sched.store.conformance.machine` is apart: it needs hypothesis, and many empty stores. For
readable failures a conftest.py calls `pytest.register_assert_rewrite` with this package's name.
"""

from rota.sched.store.conformance.changing import *
from rota.sched.store.conformance.dead import *
from rota.sched.store.conformance.house import *
from rota.sched.store.conformance.membership import *
from rota.sched.store.conformance.reading import *
from rota.sched.store.conformance.scheduling import *
from rota.sched.store.conformance.submission import *
from rota.sched.store.conformance.turns import *
from rota.sched.store.conformance.working import *
