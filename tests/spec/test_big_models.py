"""A model that is only simulated: what the clock takes from its number of parameters."""

import pytest

from perfeds2.spec.cells import cycles_per_sample, make_cell, model_bits, upload_bits
from perfeds2.spec.resolve import spec_from
from perfeds2.studies.compare import simulate_spec


def test_the_bits_of_a_big_model_follow_from_its_parameters():
    big = {"parameters": 11e6, "radio": "umi"}
    assert upload_bits(spec_from(**big)) == 32 * 11e6
    assert model_bits(spec_from(**big)) == 32 * 11e6
    arrays = 4  # of digits' default model, with a scale of 32 bits each
    assert upload_bits(spec_from(**big, bits=8)) == pytest.approx(8 * 11e6 + 32 * arrays)


def test_top_k_sends_a_share_of_the_numbers_with_their_places():
    whole, few = (upload_bits(spec_from(parameters=1_000_000, **more)) for more in ({}, {"top_k": 0.01}))
    assert 0.01 * whole < few < 0.02 * whole  # 10,000 numbers of 32 bits, each with a place of less than 32


def test_cycles_are_100_per_parameter_unless_they_are_given():
    assert cycles_per_sample(spec_from(parameters=11e6)) == 100 * 11e6
    assert make_cell(spec_from(parameters=11e6), 0).cycles_per_sample == 100 * 11e6
    assert cycles_per_sample(spec_from(parameters=11e6, cycles_per_sample=5)) == 5


def test_a_big_model_is_simulated_without_training_it():
    spec = spec_from(
        parameters=11e6, radio="umi", bandwidth_hz=2e7, bits=8, algorithms=["PerFedS2"], seeds=[0], rounds=2
    )
    played = simulate_spec(spec, "simulate", None)
    assert played.facts["PerFedS2", 0]["upload_bits"] == upload_bits(spec)
    assert played.timelines["PerFedS2", 0].rounds == 2


def test_a_big_model_by_name_counts_its_own_numbers_with_bits_and_top_k():
    spec = spec_from(task="cifar10", model="resnet18-gn", bits=8, top_k=0.01)
    numbers = 11_173_962  # ResNet-18 for 10 classes of 32 x 32 pixels, with group normalisation
    assert model_bits(spec) == 32 * numbers
    assert upload_bits(spec) == pytest.approx(0.01 * 32 * numbers, rel=0.001)  # 8 bits and a place of 24, and scales
