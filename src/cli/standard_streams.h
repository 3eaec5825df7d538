#pragma once

namespace heddle::cli {

/// Call first of all. Standard streams that are closed are opened, so that no file gets their
/// numbers; writing a result to a closed standard output still fails. A reader that has gone, or a
/// file that may not grow, is an error of the write and not the end of the process.
void prepare_standard_streams();

/// Whether standard output has refused something, by whatever a verb prints.
bool results_have_failed();

/// Call last: brings results to standard output and gives the exit status, which is `status` unless
/// they do not get there. Then it says so, and a 0 becomes 3; but where the reader had enough
/// (`| head`), the process ends silently by SIGPIPE, as others do.
int status_with_results(int status);

}  // namespace heddle::cli
