import contextlib

from sandgate_router.registry.local.users import FIRST, LAST, OwnUser


def test_each_sandbox_gets_a_user_that_no_other_has() -> None:
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(contextlib.closing(OwnUser.reserve())) for _ in range(50)]
        assert len({user.uid for user in users}) == 50
        assert all(FIRST <= user.uid <= LAST for user in users)


def test_a_user_that_was_given_back_can_be_had_again() -> None:
    import random

    random.seed(1)
    first = OwnUser.reserve()
    first.close()
    random.seed(1)
    again = OwnUser.reserve()
    again.close()
    assert again.uid == first.uid
