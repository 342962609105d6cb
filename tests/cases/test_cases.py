"""Faults that bit users of other tools, and the tests that hold us to the right result.

Each row names one fault and the tests of its kind, wherever they stand; those of recordings are in this folder.
That a test exists is all that is checked here; whether it holds its fault is for whoever changes a row to read.
"""

import ast
from pathlib import Path

import pytest
import torch
from gymnasium import spaces

from dreamsim.core.types import Segment
from worldmodels.decoder_free import DecoderFree
from worldmodels.ensemble import Ensemble

TESTS = Path(__file__).parents[1]

CASES = {
    # transitions and resets
    "the frame after a reset is skipped and the episode shifted": (
        "data/test_collect.py::test_an_episode_has_one_more_observation_than_actions",
        "data/test_collect.py::test_rows_are_aligned_in_every_autoreset_mode_with_unequal_lengths",
    ),
    "one dream that ends resets all": ("envs/test_dream.py::test_one_dream_that_ends_resets_only_itself",),
    "returns and lengths are one short when environments reset themselves": (
        "data/test_collect.py::test_rows_are_aligned_in_every_autoreset_mode_with_unequal_lengths",
        "data/test_collect.py::test_evaluation_returns_every_seed_once_however_long_the_episodes",
    ),
    "the last observation is lost, or a reset is stored as a step": (
        "data/test_collect.py::test_rows_are_aligned_in_every_autoreset_mode_with_unequal_lengths",
        "envs/test_sb3.py::test_ends_are_told_as_stable_baselines_expects",
    ),
    "an imagined action is credited one step late, or its own end takes its gradient": (
        "training/test_learner.py::test_the_last_action_before_the_goal_gets_its_credit",
        "training/test_learner.py::test_with_imagination_it_is_the_discounted_dream_and_its_leaf",
    ),
    "a belief starts afresh one step early": (
        "imagination/test_imagine.py::test_a_believer_starts_only_the_rows_that_begin",
        "envs/test_believed.py::test_it_shows_what_believer_shows_a_policy",
    ),
    "an outer cap hides a native truncation": (
        "envs/test_adapt.py::test_an_outer_cap_never_hides_a_native_truncation",
        "envs/test_adapt.py::test_an_env_that_ends_and_reaches_the_cap_at_once_has_terminated",
    ),
    "a bootstrap is added for all environments, not the truncated one": (
        "imagination/test_returns.py::test_gae_bootstraps_on_truncation_only",
        "data/test_replay.py::test_truncation_is_not_termination",
    ),
    "costs and 0 behind the end teach to fail": (
        "training/test_learner.py::test_what_follows_a_termination_is_worth_what_the_user_says",
    ),
    "nobody knows which step a field belongs to": (
        "data/test_replay.py::test_a_known_step_is_read_back_field_by_field",
        "data/test_windows.py::test_every_row_is_the_window_its_index_names",
    ),
    "who sees the first observation of a dream is hidden": (
        "envs/test_dream.py::test_episodes_and_functions_serve_as_starts",
        "envs/test_run_dream.py::test_dreams_begin_at_any_recorded_step_where_they_are_asked_to",
    ),
    # replay and sampling
    "a full buffer crashes": (
        "data/test_replay.py::test_episodes_as_long_as_the_capacity_wrap_around",
        "data/test_replay.py::test_only_whole_oldest_episodes_make_room",
    ),
    "windows cross episodes": (
        "data/test_replay.py::test_every_row_is_the_window_its_index_names",
        "data/test_windows.py::test_every_row_is_the_window_its_index_names",
    ),
    "episodes shorter than the window are skipped, or padding joins them": (
        "data/test_replay.py::test_short_episodes_are_padded_and_their_share_reported",
        "data/test_windows.py::test_short_episodes_are_kept_and_their_padding_reported",
        "data/test_windows.py::test_nothing_is_left_out_without_a_word",
    ),
    "members of an ensemble learn from equal windows": (
        "core/test_bagging.py::test_members_see_different_windows_and_together_all_kinds",
        "core/test_bagging.py::test_a_window_is_always_seen_alike",
    ),
    # resume and checkpoints
    "the buffer is gone after resuming": (
        "training/test_joint.py::test_a_run_stopped_half_way_and_resumed_equals_one_that_went_through",
        "data/test_store.py::test_replay_rebuilt_from_the_store_draws_what_the_uninterrupted_one_draws",
    ),
    "the buffer is loaded twice": (
        "data/test_replay.py::test_state_may_be_loaded_twice",
        "training/test_joint.py::test_a_finished_run_is_not_gone_on_with_unless_it_is_made_longer",
    ),
    "catching up makes thousands of updates": (
        "training/test_joint.py::test_catching_up_after_a_late_start_is_bounded",
    ),
    "a position in mid-epoch is lost with workers": (
        "data/test_windows.py::test_stopping_in_mid_epoch_repeats_and_misses_nothing",
        "training/test_recordings.py::test_a_stopped_pretraining_goes_on_to_the_same_bits",
    ),
    "compiled weights do not load": ("core/test_run.py::test_compiled_and_eager_weights_are_interchangeable",),
    "a checkpoint loads on one path only": (
        "cases/test_runs.py::test_every_kind_of_run_acts_in_a_fresh_process_when_its_data_are_gone",
        "core/test_run.py::test_a_fresh_process_loads_and_acts",
        "training/test_joint.py::test_what_a_run_leaves_is_enough_to_act",
    ),
    "pretrained weights lack their statistics": (
        "cases/test_runs.py::test_every_kind_of_run_acts_in_a_fresh_process_when_its_data_are_gone",
        "training/test_recordings.py::test_a_joint_run_starts_from_a_pretrained_world",
        "core/test_run.py::test_save_and_load_give_the_same_actions_environment_and_story",
    ),
    # spaces, images, numbers
    "a Discrete that does not start at 0 breaks": (
        "core/test_spaces.py::test_discrete_with_a_negative_start_covers_all_its_values",
    ),
    "synchronous and asynchronous environments differ": (
        "envs/test_adapt.py::test_it_agrees_with_gymnasiums_vector_env_and_with_processes",
        "data/test_collect.py::test_processes_give_the_same_episodes",
    ),
    "continuous actions in other bounds crash": (
        "training/test_joint.py::test_actions_in_other_bounds_and_costs_for_rewards_are_learned_too",
    ),
    "actions leave their range": (
        "core/test_spaces.py::test_asymmetric_bounds_are_met_at_both_ends",
        "core/test_spaces.py::test_whatever_a_policy_gives_lies_inside_the_space",
        "core/test_spaces.py::test_an_action_without_bounds_is_refused_with_the_cure",
    ),
    "a grid is divided by 255": ("core/test_spaces.py::test_a_grid_is_not_an_image_and_stays_unscaled",),
    "images are scaled differently in acting and training": (
        "cases/test_cases.py::test_a_frame_reads_the_same_in_acting_and_in_training",
        "data/test_replay.py::test_images_keep_their_bytes",
    ),
    "the layout of an image is guessed": (
        "core/test_spaces.py::test_both_layouts_of_an_image_read_alike",
        "core/test_spaces.py::test_an_image_whose_channels_cannot_be_told_is_refused",
    ),
    "a number that does not vary divides by zero": (
        "core/test_spaces.py::test_a_component_that_cannot_vary_reads_zero",
        "cases/test_cases.py::test_an_observation_that_never_varies_stays_finite",
    ),
    "NaN reaches the environment, or stops nobody": (
        "cases/test_runs.py::test_a_reward_that_is_not_a_number_stops_at_its_step_and_leaves_a_good_checkpoint",
        "data/test_collect.py::test_a_bad_number_stops_by_name_and_keeps_what_was_finished",
        "envs/test_adapt.py::test_an_action_that_is_not_finite_is_refused_with_env_and_step",
        "training/test_joint.py::test_a_loss_that_is_not_finite_names_itself_and_keeps_the_last_checkpoint",
    ),
    # determinism, processes and the rest
    "a seeded reset leaves something of before": (
        "envs/test_control.py::test_a_seed_gives_the_same_episode_after_anything_and_beside_anything",
    ),
    "a seed is not used, or the global generator is": (
        "core/test_random.py::test_two_interleaved_streams_with_equal_seeds_draw_equal_numbers",
        "data/test_collect.py::test_equal_seeds_give_equal_episodes_and_leave_the_global_generators_alone",
    ),
    "evaluation repeats training episodes": (
        "evaluation/test_report.py::test_seeds_that_training_used_give_a_warning_and_a_tag",
        "data/test_windows.py::test_sides_share_no_window_and_a_copied_episode_is_found",
    ),
    "images are flipped": ("envs/test_render.py::test_red_is_left_blue_is_right_green_is_on_top",),
    "cameras are bound by position": (
        "envs/test_render.py::test_a_camera_is_bound_by_name",
        "cases/test_lerobot_cases.py::test_data_of_other_cameras_is_refused_by_name",
    ),
    "counters scale with optimisers": (
        "cases/test_runs.py::test_counters_and_rates_do_not_depend_on_how_many_groups_are_learned",
        "training/test_joint.py::test_counters_count_what_happened",
    ),
    # Several devices are refused; whoever allows them owes the test of 5 batches against 3.
    "uneven ranks hang": ("training/test_joint.py::test_several_devices_are_refused_in_words",),
    "opening and closing leaves something behind": (
        "cases/test_runs.py::test_opening_and_closing_leaves_no_thread_handle_or_memory",
        "envs/test_render.py::test_opening_and_closing_leaves_nothing_behind",
        "training/test_joint.py::test_memory_handles_and_threads_stay_constant_over_a_long_run",
        "data/test_ahead.py::test_no_process_is_left_when_this_one_is_killed",
    ),
    "a loss keeps its graph and memory grows": (
        "cases/test_runs.py::test_no_tensor_outlives_its_update",
        "training/test_learner.py::test_memory_stays_flat_and_no_loss_keeps_its_graph",
    ),
    "a misspelt option is taken": (
        "test_cli.py::test_a_misspelt_option_is_refused_with_the_nearest_right_one",
        "test_cli.py::test_a_misspelt_key_of_a_config_is_refused_at_any_depth",
    ),
    "late actions surprise on a robot": (
        "evaluation/test_delay.py::test_actions_arrive_late_and_nothing_is_pushed_before",
    ),
}


@pytest.mark.parametrize("fault", CASES)
def test_each_fault_is_held_by_tests_that_exist(fault):
    for place in CASES[fault]:
        file, _, name = place.partition("::")
        defined = {
            node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert name in defined, f"{place} is gone; name the test that holds {fault!r} now"


def test_a_frame_reads_the_same_in_acting_and_in_training():
    torch.manual_seed(0)
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 32, 32), "uint8")})
    model = DecoderFree(space, spaces.Box(-1, 1, (1,)), latent=16, width=16, encoder_width=16).eval()
    frames = torch.randint(0, 256, (4, 3, 3, 32, 32), dtype=torch.uint8)
    acting = torch.stack([model.encoder({"image": frames[:, t]}) for t in range(3)], 1)
    with torch.no_grad():
        torch.testing.assert_close(model.encoder({"image": frames}), acting)


def test_an_observation_that_never_varies_stays_finite():
    space, actions = spaces.Dict({"state": spaces.Box(-5, 5, (3,))}), spaces.Box(-1, 1, (2,))
    still, nothing = torch.full((8, 4, 3), 0.7), torch.zeros(8, 3)
    index = torch.zeros(8, 2, dtype=torch.int64)
    batch = Segment({"state": still}, torch.zeros(8, 3, 2), nothing, nothing.bool(), torch.ones(8, 3), {}, None, index)
    for model in (
        DecoderFree(space, actions, latent=16, width=16, encoder_width=16, decoder=8),
        Ensemble(space, actions),
    ):
        model.fit_statistics(batch)
        for mode in (model.train(), model.eval()):
            assert all(torch.isfinite(loss) for loss in mode.loss(batch).losses.values())
            view = mode.view(mode.start({"state": still[:, 0]}))
            assert all(torch.isfinite(value).all() for value in view.values())
