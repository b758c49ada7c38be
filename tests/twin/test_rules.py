"""Which test works which rule of vLLM's scheduler by hand; the recorded traces cover most again."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = "test_real_steps::test_the_twin_takes_every_step_of_the_real_engine"
# Rule -> tests. In words: what the rule says.
RULES = {
    "S1 tokens granted: the smallest of lack, caps, budgets, length": [
        "test_scheduler::test_a_long_prompt_fills_what_ten_decodes_leave", RECORDED],
    "S2 token budget of a step": [
        "test_scheduler::test_eight_prompts_under_a_small_budget", RECORDED],
    "S3 running first; nobody admitted in a step that preempts": [
        "test_scheduler::test_nobody_is_admitted_in_a_step_that_preempts", RECORDED],
    "S4 a request without tokens is passed over": [
        "test_scheduler_rules::test_a_request_without_tokens_is_passed_over_and_later_ones_go_on",
        RECORDED],
    "S5 cap on long prompts, and a lone prompt by release": [
        "test_scheduler::test_the_cap_on_long_prompts_lets_later_ones_pass",
        "test_scheduler::test_the_cap_on_a_lone_prompt_by_release", RECORDED],
    "S6 admission stops at budget, slots, the first that does not fit": [
        "test_scheduler::test_the_first_that_does_not_fit_stops_the_queue",
        "test_scheduler::test_the_batch_ceiling_holds",
        "test_scheduler::test_active_sequences_may_be_fewer_than_the_ceiling", RECORDED],
    "S7 room for the whole prompt": [
        "test_scheduler::test_room_for_the_whole_prompt_is_asked_for_before_the_first_chunk",
        RECORDED],
    "S8 watermark": [
        "test_scheduler::test_the_watermark_applies_while_something_runs", RECORDED],
    "S9 chunked prefill off": [
        "test_scheduler::test_without_chunking_a_prompt_waits_for_a_step_that_holds_it", RECORDED],
    "S10 prefill interval": [
        "test_scheduler_rules::test_prompts_wait_three_steps_after_the_last_one_while_others_decode",
        "test_scheduler_rules::test_a_prompt_under_way_is_held_back_as_well",
        "test_scheduler_rules::test_prompts_that_pile_up_suspend_the_interval", RECORDED],
    "S11 who gives way, under both policies": [
        "test_scheduler::test_preemption_worked_by_hand",
        "test_scheduler_rules::test_under_priorities_who_ranks_last_gives_way_and_not_the_tail",
        "test_scheduler_rules::test_who_gives_way_itself_ends_the_loop_only_in_021",
        "test_scheduler_rules::test_tokens_already_granted_to_a_victim_return_to_the_budget",
        RECORDED],
    "S12 preemption by recompute": [
        "test_scheduler::test_preemption_worked_by_hand",
        "test_scheduler::test_a_preempted_request_finds_its_own_blocks_again", RECORDED],
    "S13 the last chunk gives the first token": [
        "test_scheduler::test_a_long_prompt_fills_what_ten_decodes_leave", RECORDED],
    "S14 queues": [
        "test_scheduler_rules::test_priority_decides_the_order_of_admission_and_arrival_breaks_ties",
        "test_scheduler_rules::test_under_fcfs_the_priority_is_ignored", RECORDED],
    "S15 stop, and blocks free for the next call": [
        "test_scheduler::test_a_request_gets_each_token_once_and_then_leaves", RECORDED],
    "S16 two steps in flight": [
        "test_scheduler_rules::test_at_depth_two_the_next_step_is_decided_before_the_last_one_ends",
        "test_scheduler::test_with_steps_in_flight_a_finished_request_keeps_its_slot_for_one_step",
        RECORDED],
    "S17 speculative decoding": ["test_speculative::*"],
    "S18 prefix cache: full blocks, one token is always computed": [
        "test_scheduler_rules::test_a_fully_cached_prompt_computes_its_last_block_again", RECORDED],
    "S19 blocks are found when scheduled": [
        "test_scheduler_rules::test_a_fully_cached_prompt_computes_its_last_block_again", RECORDED],
    "S20 order of reuse, by release": [
        "test_scheduler_rules::test_which_blocks_are_reused_first", RECORDED],
    "S21 hit blocks that lie free count as used": [
        "test_scheduler_rules::test_hit_blocks_that_lie_free_count_as_used_up", RECORDED],
    "S22 size of the pool": ["test_memory::*"],
    "S23 default limits by device": ["../domain/test_defaults::*"],
    "S24 CUDA graphs and padding": ["test_steptime::*", "../domain/test_defaults::*"],
    "S25 valves": [
        "test_valves::test_requests_above_the_limit_get_503_and_the_others_are_served",
        "test_valves::test_prompt_tokens_count_in_full_until_the_first_token"],
    "S26 streaming": [
        "test_valves::test_chunks_leave_at_the_first_every_nth_and_the_last_token"],
    "S27 no cascade attention": ["test_steptime::*"],
}  # fmt: skip


def names_in(module):
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"
    }


def test_every_rule_has_a_test_that_exists():
    assert [r.split()[0] for r in RULES] == [f"S{n}" for n in range(1, 28)]
    for rule, names in RULES.items():
        assert names, rule
        for name in names:
            module, _, test = name.partition("::")
            found = names_in(module)
            assert found if test == "*" else test in found, (rule, name)


def test_at_least_twenty_scenarios_are_worked_by_hand():
    by_hand = names_in("test_scheduler") | names_in("test_scheduler_rules")
    assert len(by_hand) >= 20
