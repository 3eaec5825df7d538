#pragma once

namespace CLI {
class App;
}

namespace heddle::cli {

// Each function adds one verb to the program: its options, its help, and the callback that runs it.
// A callback throws heddle::Error on failure; main turns that into a message and an exit status.

void add_bench(CLI::App& app);
void add_config(CLI::App& app);
void add_demo_text(CLI::App& app);
void add_doctor(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_simulate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_train(CLI::App& app);
void add_convert(CLI::App& app);
void add_inspect(CLI::App& app);
void add_verify(CLI::App& app);

// Verbs below a verb, each in its own file.

void add_bench_comm(CLI::App& bench);
void add_bench_ops(CLI::App& bench);
void add_verify_mesh(CLI::App& verify);
void add_verify_reference(CLI::App& verify);
void add_verify_tokenizer(CLI::App& verify);

}  // namespace heddle::cli
