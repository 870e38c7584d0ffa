"""The rules that order the classes of a station, by hand."""

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.network_file import load_network
from queuetheory_llm.schedulers.back_pressure import BackPressure
from queuetheory_llm.schedulers.class_order import network_policy


def test_back_pressure_weighs_a_queue_against_what_it_feeds():
    rule = BackPressure.of(load_network("rybko-stolyar").fluid_model)  # A1 -> A2, B1 -> B2; means .1, .6, .1, .6
    present = [7, 4, 3, 5]
    assert [rule.weight(k, present) for k in range(4)] == pytest.approx([10 * 3, 4 / 0.6, 10 * -2, 5 / 0.6])
    assert list(rule.order([0, 3], present)) == [0, 3]
    assert list(rule.order([1, 2], present)) == [1]  # serving B1 would raise the sum of squares


def test_equal_weights_go_by_the_order_of_the_model_and_empty_classes_are_left_out():
    rule = BackPressure((1.0, 1.0, 1.0), ((), (), ()))
    assert list(rule.order([0, 1, 2], [2, 0, 2])) == [0, 2]


def test_orders_given_beside_the_model_replace_those_of_their_stations():
    network = load_network("rybko-stolyar")
    policy = network_policy(network, "file", {"s1": ["A1", "B2"]})
    assert [list(rule.order([], [])) for rule in policy.rules] == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("policy", "priority", "what"),
    [
        ("fifo", None, "policy: 'fifo' is not known"),
        ("back-pressure", {"s1": ["A1", "B2"]}, "back-pressure orders the classes"),
        ("file", {"s3": ["A1"]}, "'s3' is no station; known: s1, s2"),
        ("file", {"s1": ["A1"]}, "priority.s1: list each of A1, B2 once"),
    ],
)
def test_orders_that_fit_no_station_are_refused(policy, priority, what):
    with pytest.raises(InvalidInput, match=what):
        network_policy(load_network("rybko-stolyar"), policy, priority)
