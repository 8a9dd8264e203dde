"""By which expressions of the running lines an object is reached."""

from __future__ import annotations

from torch import nn

from gradcheck_suite.auditing.object_names.expressions import ways_to


class Holder:
    def __init__(self, thing):
        self.thing = thing
        self.things = {"one": thing}
        self.parts = nn.ModuleDict({"two": thing})

    def by_attribute(self):
        return reach(self.thing)

    def by_item(self):
        return reach(
            self.things["one"],
        )

    def by_part(self):
        return reach(self.parts.two)

    def after_a_failure(self):
        try:
            int("x")
        except ValueError:
            return reach(self.thing)


def reach(thing):
    return ways_to(lambda value: value is thing)


def own(ways):
    return [way for way in ways if way.text not in {"thing", "reach"}]


def test_expressions_name_what_is_reached():
    holder = Holder(nn.Linear(1, 1))
    (attribute,) = own(holder.by_attribute())
    assert (attribute.text, attribute.key, attribute.of_module) == ("self.thing", "thing", False)
    assert attribute.holder == id(holder)
    (item,) = own(holder.by_item())
    assert (item.text, item.key) == ("self.things['one']", "one")
    assert item.holder == id(holder.things)
    (part,) = own(holder.by_part())
    assert (part.text, part.of_module) == ("self.parts.two", True)
    assert [way.text for way in own(holder.after_a_failure())] == ["self.thing"]


def test_assignment_is_that_of_the_same_text():
    (way,) = own(Holder(nn.Linear(1, 1)).by_attribute())
    location = way.assigned_at()
    assert location is not None
    assert location.function == "Holder.__init__"
