//! Parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(export_queue::commands::main())
}
