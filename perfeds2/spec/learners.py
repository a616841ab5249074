"""Make the learner of a method: its objective and merge, with the settings of a spec that they take."""

from perfeds2.errors import InputError, input_errors
from perfeds2.learning.learner import Learner, expect_part
from perfeds2.learning.merges import Merge
from perfeds2.learning.method import Method
from perfeds2.learning.methods import parts_of
from perfeds2.spec.cells import compression_settings
from perfeds2.spec.fields import PrivacySpec, Spec
from perfeds2.spec.methods import ListedMethod
from perfeds2.spec.names import Named, Values, call
from perfeds2.spec.privacy import refuse_unless_private


def learner_settings(spec: Spec, algorithm: str) -> Values:
    """Return the settings of the spec that are fields of ``Learner``."""
    learning, known = spec.learning_of(algorithm), _known(spec, algorithm)
    found = {key: value for key, value in known.items() if key in Learner.__dataclass_fields__}
    found |= compression_settings(spec)
    if learning.attack is not None:
        found["attack"] = learning.attack.value
    found["noise"], found["bands"] = spec.privacy.noise, spec.privacy.bands or 1
    chosen = learning.merge
    if chosen is not None:
        merge = chosen.value
        if not isinstance(merge, Merge):  # a class, or a function that makes a merge
            merge = call(merge, f"--merge {chosen}", known | spec.method_settings(chosen.label))
        with input_errors(f"--merge {chosen}"):
            expect_part(merge, Merge, "a merge")
        found["merge"] = merge
    return found


def _known(spec: Spec, algorithm: str) -> Values:
    return {key: value for key, value in spec.learning_of(algorithm) if value is not None}


def make_method(spec: Spec, algorithm: str, listed: ListedMethod) -> Method:
    """Make a method with its settings."""
    made = call(listed.make, f"the method {algorithm}", _known(spec, algorithm) | spec.method_settings(algorithm))
    expect_part(made, Method, "a method")
    return made


def make_learner(spec: Spec, algorithm: str, listed: ListedMethod) -> Learner:
    """Make the learner of a method, with the settings that the method and its merge take."""
    return learner_of(spec, algorithm, make_method(spec, algorithm, listed))


def learner_of(spec: Spec, algorithm: str, method: Method) -> Learner:
    objective, merge = parts_of(method)
    given: Values = {"merge": merge}
    learner = Learner(objective, **given | learner_settings(spec, algorithm))
    refuse_what_does_not_fit(spec.privacy, algorithm, learner, spec.learning_of(algorithm).merge)
    return learner


def refuse_what_does_not_fit(privacy: PrivacySpec, algorithm: str, learner: Learner, merge: Named | None) -> None:
    """Refuse settings that a method does not support."""
    refuse_unless_private(privacy, algorithm, learner)
    given = {"--top-k": learner.top_k, "--compress": learner.compress}
    why = "it merges late uploads as well, and a UE cannot know which of them were used"
    if learner.objective.keeps_uploads:
        given |= {"--clip": learner.clip, "--bits": learner.bits, "--merge": merge}
        why = "what its UEs keep is computed from whole uploads, and it has a merge of its own"
    elif "undrafted" not in learner.merge.needs:
        return
    for flag, value in given.items():
        if value is not None:
            what = flag if flag == "--compress" else f"{flag} {value}"
            raise InputError(
                f"{what} cannot be combined with {algorithm}: {why}. Leave it out, or remove {algorithm} from --algorithms."
            )
