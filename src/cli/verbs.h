#pragma once

namespace heddle::cli {

class Verb;

// Each function adds one verb to the program: its options, its help, and the callback that runs it.
// A callback throws heddle::Error on failure; main turns that into a message and an exit status.

void add_bench(Verb app);
void add_config(Verb app);
void add_demo_text(Verb app);
void add_doctor(Verb app);
void add_eval(Verb app);
void add_generate(Verb app);
void add_launch(Verb app);
void add_plan(Verb app);
void add_simulate(Verb app);
void add_tokenize(Verb app);
void add_tokenizer(Verb app);
void add_trace(Verb app);
void add_train(Verb app);
void add_convert(Verb app);
void add_inspect(Verb app);
void add_verify(Verb app);

// Verbs below a verb, each in its own file.

void add_bench_codec(Verb bench);
void add_bench_comm(Verb bench);
void add_bench_context(Verb bench);
void add_bench_decode(Verb bench);
void add_bench_link(Verb bench);
void add_bench_ops(Verb bench);
void add_plan_evaluate(Verb plan);
void add_plan_experts(Verb plan);
void add_plan_routes(Verb plan);
void add_plan_stages(Verb plan);
void add_simulate_context(Verb simulate);
void add_simulate_decode(Verb simulate);
void add_simulate_experts(Verb simulate);
void add_simulate_local(Verb simulate);
void add_simulate_network(Verb simulate);
void add_simulate_step(Verb simulate);
void add_verify_mesh(Verb verify);
void add_verify_reference(Verb verify);
void add_verify_tokenizer(Verb verify);

}  // namespace heddle::cli
