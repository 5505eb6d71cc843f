//! What the program says of itself to shells and to `man`.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit::{Exit, Refusal};
use crate::output;

/// The name of the program.
const NAME: &str = "export-queue";

pub(super) fn completions(shell: Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print(script)
}

pub(super) fn man(command: Option<&str>) -> Result<Exit> {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => {
            let found = cli.find_subcommand(name).filter(|command| !command.is_hide_set());
            let found = found.ok_or_else(|| Refusal::usage(format!("there is no command `{name}`")))?;
            found.clone()
        }
    };
    let mut roff = Vec::new();
    Man::new(page).render(&mut roff)?;
    print(roff)
}

fn print(text: Vec<u8>) -> Result<Exit> {
    output::say(String::from_utf8(text)?.trim_end())?;
    Ok(Exit::Done)
}
