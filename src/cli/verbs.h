#pragma once

namespace CLI {
class App;
}

namespace heddle::cli {

// Each function adds one verb to the program: its options, its help, and the callback that runs it.
// A callback throws heddle::Error on failure; main turns that into a message and an exit status.

void add_config(CLI::App& app);
void add_convert(CLI::App& app);
void add_inspect(CLI::App& app);
void add_verify(CLI::App& app);

// Parts of `verify`, each in its own file.
void add_verify_tokenizer(CLI::App& verify);

}  // namespace heddle::cli
