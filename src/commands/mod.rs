//! The faces of the flows: parse, call a flow, print. Nothing is decided here.

mod ask;
mod manual;
mod observe;
mod operate;
mod setup;
mod steer;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use crate::bind::{self, Home};
use crate::cli::{Cli, Color, Command, Global, poll};
use crate::config::{self, Loaded};
use crate::errand;
use crate::exit::{Exit, Refusal, exit_of};
use crate::exporter::confine;
use crate::layout::SlotName;
use crate::output;
use crate::process;
use crate::stop;
use crate::store::{Filter, Past};
use crate::work;

/// What every command starts from.
struct Start {
    global: Global,
    env: BTreeMap<String, String>,
}

impl Start {
    fn load(&self) -> Result<Loaded> {
        let loaded = config::load(self.global.config.as_deref(), &self.env);
        loaded.map_err(|error| Refusal::config(one_line(&error.to_string())))
    }

    /// The queue in force, as its owner where this is root.
    fn home(&self) -> Result<Home> {
        let loaded = self.load()?;
        bind::become_owner(&loaded.config)?;
        if let Some(path) = &loaded.path {
            // Workers read it again: what only root can read would stop them later.
            std::fs::File::open(path).map_err(|error| bind::unusable(path, &error))?;
        }
        Home::of(loaded)
    }

    /// Whether text output is coloured: as asked, else on a terminal unless `NO_COLOR` is set.
    fn wants_color(&self) -> bool {
        match self.global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && self.env.get("NO_COLOR").is_none_or(String::is_empty),
        }
    }

    /// Says something to people, unless they want quiet.
    fn tell(&self, message: &str) {
        if !self.global.quiet {
            eprintln!("export-queue: {message}");
        }
    }
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

/// Runs the program; gives back its exit code.
pub fn main() -> u8 {
    // A worker inherits whatever cron and its dispatcher had open; nothing of that may stay with it.
    if std::env::args_os().any(|argument| argument == "work") {
        process::close_inherited();
    }
    let wants_json = std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    let cli = match poll::read(std::env::args_os().skip(1)).map_or_else(Cli::try_parse, Ok) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, wants_json),
    };
    let exit_zero = cli.global.exit_zero;
    let exit = run(cli).unwrap_or_else(|error| complain(&error, wants_json));
    if exit_zero && exit.is_answer() { 0 } else { exit.code() }
}

fn usage(error: &clap::Error, wants_json: bool) -> u8 {
    if !error.use_stderr() {
        // Help and version; a reader that went away is no error.
        let _ = error.print();
        return 0;
    }
    if wants_json {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        // An error that cannot be told is still the exit code.
        let _ = output::say(&output::error_json(Exit::Usage.code(), message));
    } else {
        let _ = error.print();
    }
    Exit::Usage.code()
}

fn complain(error: &anyhow::Error, wants_json: bool) -> Exit {
    let exit = exit_of(error);
    let message = crate::exporter::plain(&one_line(&format!("{error:#}")));
    if wants_json {
        let _ = output::say(&output::error_json(exit.code(), &message));
    } else {
        use std::io::Write;
        // Whoever closed standard error does not want to know.
        let _ = writeln!(std::io::stderr(), "export-queue: {message}");
    }
    exit
}

fn run(cli: Cli) -> Result<Exit> {
    if let Command::Confine { no_network, writable, command } = &cli.command {
        // Nothing that this program sets for itself is to reach the exporter.
        return confine::enter(*no_network, writable.as_deref(), command).map(|()| Exit::Done);
    }
    stop::survive_file_size_limit()?;
    let start = Start { global: cli.global, env: config::environment() };
    if let Command::Work { queue, slot } = cli.command {
        return run_work(&start, &SlotName { queue, number: slot });
    }
    // Front ends that poll have no use for a log, and what it costs is dear to them.
    let is_polled = matches!(cli.command, Command::Status { .. } | Command::Request { .. });
    if !is_polled || start.global.verbose > 0 {
        log_to_stderr(&start.global);
    }
    match cli.command {
        Command::Init { adopt, user, group } => setup::init(&start, adopt, user.as_deref(), group.as_deref()),
        Command::Check => setup::check(&start),
        Command::Config { command } => setup::config(&start, command),
        Command::Request { batch: Some(path), .. } => steer::request_all(&start, &path),
        Command::Request { select, terms, dry_run: true, .. } => ask::rehearse(&start, &select, terms),
        Command::Request { select, terms, wait, .. } => ask::request(&start, &select, terms, wait),
        Command::Status { select, wait } => ask::status(&start, &select, wait),
        Command::Fetch { select, output } => ask::fetch(&start, &select, &output),
        Command::Explain { select } => ask::explain(&start, &select),
        Command::Log { select } => ask::log(&start, &select),
        Command::Retry { all_failed: true, .. } => steer::retry_failed(&start),
        Command::Purge { state, older_than, dry_run } => steer::purge(&start, state, older_than, dry_run),
        Command::Retry { select, .. } => ask::retry(&start, &select),
        Command::Dismiss { select } => ask::dismiss(&start, &select),
        Command::Cancel { select, client, force } => ask::cancel(&start, &select, client.as_deref(), force),
        Command::History { title, variant, filename, outcome, client, since, limit } => {
            let past = Past { filename, outcome, client, limit: Some(limit), ..Past::default() };
            ask::history(&start, title, &variant, past, since)
        }
        Command::Stats { since, by, csv } => observe::stats(&start, since, &by, csv),
        Command::Health => observe::health(&start),
        Command::Metrics { output } => observe::metrics(&start, output.as_deref()),
        Command::Watch { interval } => observe::watch(&start, interval),
        Command::Migrate { to, wait, command } => setup::migrate(&start, to.as_deref(), wait, command),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { command } => manual::man(command.as_deref()),
        Command::Dispatch { for_time, wait, dry_run } => operate::dispatch(&start, for_time, wait, dry_run),
        Command::Sweep { dry_run, older_than, all, force } => operate::sweep(&start, dry_run, older_than, all, force),
        Command::List { state, queue, format, limit } => operate::list(&start, &Filter { state, queue, format, limit }),
        Command::Pause { queue, message, wait } => steer::pause(&start, queue.as_deref(), message.as_deref(), wait),
        Command::Resume { queue } => steer::resume(&start, queue.as_deref()),
        Command::Queues => operate::queues(&start),
        Command::Nodes => operate::nodes(&start),
        Command::Deliveries { retry } => operate::deliveries(&start, retry),
        Command::Work { .. } | Command::Confine { .. } => Ok(Exit::Done),
    }
}

fn log_to_stderr(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => tracing::Level::ERROR,
        (false, 0) => tracing::Level::WARN,
        (false, 1) => tracing::Level::INFO,
        (false, _) => tracing::Level::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    builder.with_target(false).with_ansi(false).without_time().init();
}

/// A worker has no terminal: what it has to say goes to a file of bounded size.
fn run_work(start: &Start, name: &SlotName) -> Result<Exit> {
    let home = start.home()?;
    let log = home.layout.worker_log();
    if std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 256 * 1024) {
        std::fs::write(&log, "")?;
    }
    let log_file = OpenOptions::new().create(true).append(true).open(&log)?;
    let builder = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false).with_target(false);
    builder.with_writer(std::sync::Mutex::new(log_file)).init();
    let done = if *name == errand::slot() { errand::run(&home) } else { work::work(home, name) };
    done.inspect_err(|error| tracing::error!("the worker of slot {name} ends: {error:#}"))
}

/// The file that `init` writes where there is none.
fn path_in_force(start: &Start) -> PathBuf {
    config::path_in_force(start.global.config.as_deref(), &start.env, rustix::process::geteuid().is_root())
}
