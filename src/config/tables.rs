//! The plain tables of the configuration and their defaults.
//!
//! Owns every table but `[limits]` and `[format.…]`. Promises only that a key which is not written has the value INTERFACE
//! shows; whether the values fit together is for `validate`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{self, Bytes, FirstLetter, MaxAge, Mode, Span, TitleRules, TtlFrom, secs};

/// Where files are published and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// The directory of published files.
    pub dir: PathBuf,
    /// How long a file may live.
    pub max_age: MaxAge,
    /// What `max_age` is counted from.
    pub ttl_from: TtlFrom,
    /// How long a path that was handed out stays openable.
    pub serve_grace: Span,
    /// The size of all files together; 0 is no bound.
    pub max_bytes: Bytes,
    /// The mode of a published file.
    pub mode: Mode,
}

/// What a selection means that does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// The language.
    pub lang: String,
    /// The font.
    pub font: String,
    /// The format.
    pub format: String,
    /// What is done to titles.
    pub title_rules: TitleRules,
    /// What is done to their first letter; only with the rules of MediaWiki.
    pub title_first_letter: FirstLetter,
}

/// Other defaults for one language.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LangDefaults {
    /// The font.
    pub font: Option<String>,
    /// The format.
    pub format: Option<String>,
}

/// The languages and fonts that may be asked for; without a list any plain name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// The languages.
    pub languages: Option<Vec<String>>,
    /// The fonts.
    pub fonts: Option<Vec<String>>,
}

/// One option that commands may name as `{opt.NAME}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionSpec {
    /// The values it may have.
    pub values: Vec<String>,
    /// The value it has when a selection does not say.
    pub default: String,
}

/// Titles that are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deny {
    /// A regular expression, looked for anywhere in the title.
    pub title: String,
    /// What the asker is told.
    pub message: String,
}

/// One queue; its `slots` count per node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// How many exporters may run at once on this node.
    pub slots: u32,
    /// Books of so many pages or more wait here, whatever their format's queue is; 0: none for that.
    pub min_pages: u32,
    /// How many may run over all nodes; 0 is no bound.
    pub max_running: u32,
    /// How many jobs may wait; 0 is no bound.
    pub max_queued: u64,
    /// How many jobs of one client may wait; 0 is no bound.
    pub max_queued_per_client: u64,
    /// Nothing starts with less memory free than this.
    pub min_free_memory: Bytes,
    /// Nothing starts above this load average; 0 is no gate.
    pub max_load: f64,
    /// Nothing starts while tasks have to wait for the machine for more of the time than this, in percent; 0 is no gate.
    pub max_pressure: f64,
    /// Nothing starts with less disk free than this.
    pub min_free_disk: Bytes,
    /// How long a worker takes new jobs before a successor does.
    pub work_window: Span,
}

/// The way of small books into a queue of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bypass {
    /// The most pages that count as small.
    pub max_pages: u32,
    /// The queue they go to.
    pub queue: String,
}

/// How failures are kept and retried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Failures {
    /// How long a request is answered with the failure instead of a new run.
    pub hold: Span,
    /// How long a failed row is shown.
    pub ttl: Span,
    /// How many failed rows are kept.
    pub max: u64,
    /// How often a worker may die over one job.
    pub max_interruptions: u32,
    /// How often a worker may be told to stop over one job.
    pub max_stops: u32,
}

/// How long finished runs are remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    /// The age of the oldest.
    pub keep: Span,
    /// The number of them.
    pub max_rows: u64,
}

/// What nodes that share a database agree on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// How long a worker's claim holds without being renewed.
    pub lease: Span,
}

/// Who is told of what, by a command, a URL or a mail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// Its name in `deliveries`; without it its number, from 1.
    pub name: Option<String>,
    /// What is told of: `ready`, `failed`.
    pub on: Vec<String>,
    /// A command that is run.
    pub command: Vec<String>,
    /// How long the command may take.
    pub timeout: Span,
    /// A URL that is posted to.
    pub url: Option<String>,
    /// The file with the secret that signs what is posted.
    #[serde(deserialize_with = "values::none_if_empty")]
    pub secret_file: Option<PathBuf>,
    /// An address that is written to.
    pub email: Option<String>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/var/cache/export-queue"),
            max_age: MaxAge::After(Duration::from_secs(600)),
            ttl_from: TtlFrom::Published,
            serve_grace: secs(30),
            max_bytes: Bytes(0),
            mode: Mode(0o640),
        }
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            lang: "en".to_owned(),
            font: "default".to_owned(),
            format: "epub".to_owned(),
            title_rules: TitleRules::Exact,
            title_first_letter: FirstLetter::AsIs,
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            slots: 2,
            min_pages: 0,
            max_running: 0,
            max_queued: 100_000,
            max_queued_per_client: 0,
            min_free_memory: Bytes(0),
            max_load: 0.0,
            max_pressure: 0.0,
            min_free_disk: Bytes(200_000_000),
            work_window: secs(300),
        }
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self { hold: secs(60), ttl: secs(86_400), max: 1_000, max_interruptions: 3, max_stops: 20 }
    }
}

impl Default for History {
    fn default() -> Self {
        Self { keep: secs(90 * 86_400), max_rows: 1_000_000 }
    }
}

impl Default for Notify {
    fn default() -> Self {
        Self {
            name: None,
            on: Vec::new(),
            command: Vec::new(),
            timeout: secs(30),
            url: None,
            secret_file: None,
            email: None,
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self { lease: secs(90) }
    }
}
