//! The command line: names, options and help, and nothing of what they do.

pub mod poll;

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::Span;
use crate::job::{Outcome, State};
use crate::key::Selection;
use crate::request::Wishes;
use crate::stats::Dimension;

/// Makes EPUB, PDF and any other exports for web front ends without taking the site down
#[derive(Debug, Parser)]
#[command(name = "export-queue", version, about, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Read this configuration
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long, global = true)]
    pub json: bool,
    /// End with 0 where the answer is queued, started, failed or absent
    #[arg(long, global = true)]
    pub exit_zero: bool,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Colour the text output
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

// An export, as a caller names it.
#[expect(missing_docs, reason = "clap would print it instead of what the command does")]
#[derive(Debug, Clone, Args)]
#[group(id = "named", required = true, multiple = false, args = ["title", "title_file", "id", "filename"])]
pub struct Select {
    /// Title of the book; after `--` if it begins with a dash
    pub title: Option<String>,
    /// Read the title from this file (`-`: standard input); one newline at its end does not count
    #[arg(long, value_name = "FILE")]
    pub title_file: Option<PathBuf>,
    /// Number of the job
    #[arg(long, value_name = "N")]
    pub id: Option<i64>,
    /// Name of the file
    #[arg(long, value_name = "NAME")]
    pub filename: Option<String>,
    /// Which variant of the book.
    #[command(flatten)]
    pub variant: Variant,
}

// Which variant of a book.
#[expect(missing_docs, reason = "clap would print it instead of what the command does")]
#[derive(Debug, Clone, Default, Args)]
pub struct Variant {
    /// Language
    #[arg(long)]
    pub lang: Option<String>,
    /// Font
    #[arg(long)]
    pub font: Option<String>,
    /// Format
    #[arg(long)]
    pub format: Option<String>,
    /// Option of the format
    #[arg(long = "opt", value_name = "KEY=VALUE", value_parser = key_value)]
    pub options: Vec<(String, String)>,
}

// How an export is asked for.
#[expect(missing_docs, reason = "clap would print it instead of what the command does")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Terms {
    /// Make a new file although one is ready
    #[arg(long)]
    pub refresh: bool,
    /// Try again although it has just failed
    #[arg(long)]
    pub retry: bool,
    /// 0 to 1000, lower goes first [default: 10]
    #[arg(long, value_name = "N")]
    pub priority: Option<i64>,
    /// Who asks; clients take turns
    #[arg(long, value_name = "ID")]
    pub client: Option<String>,
    /// Give this back in status and history, at most 4 KiB
    #[arg(long, value_name = "JSON")]
    pub meta: Option<String>,
    /// Pages of the book: small ones have a queue of their own
    #[arg(long, value_name = "N")]
    pub pages: Option<u32>,
    /// Wait in this queue
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Start so much later
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "not_before")]
    pub delay: Option<Duration>,
    /// Start at this time or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub not_before: Option<DateTime<Utc>>,
    /// Give up if it has not started by then
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_wait: Option<Duration>,
}

impl Terms {
    /// The same, as a request takes it.
    pub fn wishes(self) -> Wishes {
        Wishes {
            refresh: self.refresh,
            retry: self.retry,
            priority: self.priority,
            client: self.client,
            meta: self.meta,
            pages: self.pages,
            queue: self.queue,
            delay: self.delay,
            not_before: self.not_before,
            max_wait: self.max_wait,
        }
    }
}

impl Variant {
    /// The selection of that variant of a title.
    pub fn of(&self, title: String) -> Selection {
        Selection {
            title,
            lang: self.lang.clone(),
            font: self.font.clone(),
            format: self.format.clone(),
            options: self.options.clone(),
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE is expected")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Span>().map(|span| span.0).map_err(|error| error.clone())
}

fn outcome(text: &str) -> Result<Outcome, String> {
    text.parse()
}

fn dimension(text: &str) -> Result<Dimension, String> {
    text.parse()
}

fn state(text: &str) -> Result<State, String> {
    text.parse()
}

/// What to do.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Set a queue up: configuration, directories, database
    Init {
        /// Bind database, cache and state directory to each other anew, after a lost database
        #[arg(long)]
        adopt: bool,
        /// User who runs exports and owns the queue (as root)
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// Group of the front ends (as root)
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
    },
    /// Check configuration, exporters, database, cache and surroundings
    Check,
    /// Show the configuration
    Config {
        /// What to do with it.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Ask for a file; prints its status
    Request {
        /// The export.
        #[command(flatten)]
        select: Select,
        /// Wait so long for a final answer
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        /// How it is asked for.
        #[command(flatten)]
        terms: Terms,
        /// Ask for many, one JSON object a line of this file (`-`: standard input), all or none
        #[arg(
            long, value_name = "FILE", group = "named",
            conflicts_with_all = ["Terms", "Variant", "wait", "dry_run"]
        )]
        batch: Option<PathBuf>,
        /// Say what would happen, and store nothing
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
    },
    /// Say what is true of an export
    Status {
        /// The export.
        #[command(flatten)]
        select: Select,
        /// Wait so long for a final answer
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Copy the ready file
    Fetch {
        /// The export.
        #[command(flatten)]
        select: Select,
        /// Where to (`-`: standard output)
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Recover, start exports, tidy; for cron
    Dispatch {
        /// Go on starting for so long
        #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
        for_time: Option<Duration>,
        /// Stay until the workers have ended
        #[arg(long)]
        wait: bool,
        /// Say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Work in a slot that was handed over as standard input
    #[command(hide = true)]
    Work {
        /// Queue of the slot
        #[arg(long)]
        queue: String,
        /// Number of the slot
        #[arg(long)]
        slot: u32,
    },
    /// Put walls up around this process and become the program after `--`; without one, only try
    #[command(hide = true)]
    Confine {
        /// Cut the network
        #[arg(long)]
        no_network: bool,
        /// Make the file system read-only but for this directory
        #[arg(long)]
        writable: Option<PathBuf>,
        /// Program and its arguments
        #[arg(last = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Delete files that are over age
    Sweep {
        /// Say what would be deleted
        #[arg(long)]
        dry_run: bool,
        /// Take files at least that old as well
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        older_than: Option<Duration>,
        /// Take all files
        #[arg(long, conflicts_with = "older_than")]
        all: bool,
        /// Delete at once, although paths were promised; with `--all` or `--older-than`
        #[arg(long)]
        force: bool,
    },
    /// List jobs
    List {
        /// Only in this state
        #[arg(long, value_parser = state)]
        state: Option<State>,
        /// Only in this queue
        #[arg(long)]
        queue: Option<String>,
        /// Only of this format
        #[arg(long)]
        format: Option<String>,
        /// At most that many
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
    /// Count jobs and slots of each queue
    Queues,
    /// List the machines that share the queue
    Nodes,
    /// List what others were not told yet, and what was given up
    Deliveries {
        /// Try this one afresh
        #[arg(long, value_name = "ID")]
        retry: Option<i64>,
    },
    /// Say why an export is in its state, and what happens next
    Explain {
        /// The export.
        #[command(flatten)]
        select: Select,
    },
    /// Show the kept output of the last run
    Log {
        /// The export.
        #[command(flatten)]
        select: Select,
    },
    /// Queue a failed job again
    Retry {
        /// The export.
        #[command(flatten)]
        select: Select,
        /// Every failed job, at its old place
        #[arg(long, group = "named", conflicts_with = "Variant")]
        all_failed: bool,
    },
    /// Forget failed jobs
    Purge {
        /// Of this state: failed_timeout or failed_unknown
        #[arg(long, value_parser = state)]
        state: State,
        /// Failed so long ago
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        older_than: Duration,
        /// Say how many it would be
        #[arg(long)]
        dry_run: bool,
    },
    /// Forget a failed job
    Dismiss {
        /// The export.
        #[command(flatten)]
        select: Select,
    },
    /// Take a wish back
    Cancel {
        /// The export.
        #[command(flatten)]
        select: Select,
        /// Who takes it back
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        /// Although others still want it
        #[arg(long)]
        force: bool,
    },
    /// Start nothing new of a queue; requests are still accepted
    Pause {
        /// Queue; all of them without it
        queue: Option<String>,
        /// What callers are told
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
        /// Come back when nothing of it runs any more
        #[arg(long)]
        wait: bool,
    },
    /// Let a queue go on
    Resume {
        /// Queue; all of them without it
        queue: Option<String>,
    },
    /// Show past runs
    History {
        /// Title of the book; all books without it
        title: Option<String>,
        /// Which variant; without a title all runs of that language and format.
        #[command(flatten)]
        variant: Variant,
        /// Name of the file
        #[arg(long, value_name = "NAME", conflicts_with_all = ["title", "Variant"])]
        filename: Option<String>,
        /// Only those that ended so: ready, failed_timeout, failed_unknown, retried, interrupted, stopped
        #[arg(long, value_parser = outcome)]
        outcome: Option<Outcome>,
        /// Only where this client asked first
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        /// Only those that ended within that time
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        since: Option<Duration>,
        /// At most that many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Show figures of past runs
    Stats {
        /// Of the runs that ended within that time
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "7d")]
        since: Duration,
        /// Group them by format, lang, day, client, or several of these
        #[arg(
            long, value_name = "NAMES", value_parser = dimension, value_delimiter = ',',
            default_value = "format"
        )]
        by: Vec<Dimension>,
        /// Print comma-separated values
        #[arg(long, conflicts_with = "json")]
        csv: bool,
    },
    /// Say what an operator should look at; nothing and 0 when all is well, else 1
    Health,
    /// Print the state of the queue for Prometheus
    Metrics {
        /// Into this file, replaced in one step
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show the queues again and again: a table on a terminal, else what changed
    Watch {
        /// Look so often
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
        interval: Duration,
    },
    /// Move the queue to another database, or look at its schema
    #[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
    Migrate {
        /// Move it there: a postgres:// URL, or `sqlite`
        #[arg(long, value_name = "URL")]
        to: Option<String>,
        /// Wait so long for running exports
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
        wait: Duration,
        /// What else to do.
        #[command(subcommand)]
        command: Option<MigrateCommand>,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page of the program, or of one of its commands
    Man {
        /// Which command
        command: Option<String>,
    },
}

/// What to do about the schema of the database.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum MigrateCommand {
    /// Say which schema the database holds, and which ones this program knows
    Status,
    /// Print the SQL that sets up an empty PostgreSQL database
    Sql,
}

/// What to do with the configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Print the configuration in force
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
}
