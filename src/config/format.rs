//! What makes one format, and the bounds of its runs.
//!
//! Owns `[limits]`, `[format.…]`, how the second overrides the first, and the list of arguments that may hold placeholders.
//! Does not know other formats: what a base is and where a chain leads stands in `config`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::values::{self, Bytes, Check, Span, secs};

/// The bounds of one run; a size or number of 0 is no bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How long it may take.
    pub timeout: Span,
    /// How long it has between TERM and KILL.
    pub kill_grace: Span,
    /// The memory (PSS) of its whole tree.
    pub max_memory: Bytes,
    /// The size of what it makes.
    pub max_output: Bytes,
    /// The size of its log.
    pub max_log: Bytes,
    /// The processes of its tree.
    pub max_processes: u32,
    /// The CPU seconds of its tree.
    pub max_cpu: Span,
    /// Its nice value, -20 to 19.
    pub nice: i32,
    /// Whether it is kept from the network.
    pub no_network: bool,
    /// Whether it may write nowhere but in its own directory.
    pub read_only: bool,
}

/// One format: the command that makes it, and where it differs from `[limits]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Format {
    /// The exporter and its arguments.
    pub command: Vec<String>,
    /// The pattern of what the exporter names itself, instead of `{output}`.
    pub produces: Option<String>,
    /// The format this one is made from.
    pub base: Option<String>,
    /// A command that must find the output good.
    pub verify: Vec<String>,
    /// The extension; without it the format's name.
    pub extension: Option<String>,
    /// The built-in check; without it the one that fits the extension.
    pub check: Option<Check>,
    /// The queue its jobs wait in.
    pub queue: String,
    /// The delays before the retries; its length is their number.
    pub backoff: Vec<Span>,
    /// Exit codes that are worth a retry.
    pub transient_exit: Vec<i32>,
    /// Patterns on the last lines of output that are worth a retry.
    pub transient_output: Vec<String>,
    /// Exit codes that mean success.
    pub accept_exit: Vec<i32>,
    /// Whether a run over time is retried too.
    pub retry_timeouts: bool,
    /// Variables for the exporter.
    pub env: BTreeMap<String, String>,
    /// A file of more variables, for secrets.
    #[serde(deserialize_with = "values::none_if_empty")]
    pub env_file: Option<PathBuf>,
    /// A command that tells whether the source is there.
    pub precheck: Vec<String>,
    /// A command whose output changes when the source does.
    pub fingerprint: Vec<String>,
    /// Instead of `limits.timeout`.
    pub timeout: Option<Span>,
    /// Instead of `limits.kill_grace`.
    pub kill_grace: Option<Span>,
    /// Instead of `limits.max_memory`.
    pub max_memory: Option<Bytes>,
    /// Instead of `limits.max_output`.
    pub max_output: Option<Bytes>,
    /// Instead of `limits.max_log`.
    pub max_log: Option<Bytes>,
    /// Instead of `limits.max_processes`.
    pub max_processes: Option<u32>,
    /// Instead of `limits.max_cpu`.
    pub max_cpu: Option<Span>,
    /// Instead of `limits.nice`.
    pub nice: Option<i32>,
    /// Instead of `limits.no_network`.
    pub no_network: Option<bool>,
    /// Instead of `limits.read_only`.
    pub read_only: Option<bool>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: secs(300),
            kill_grace: secs(5),
            max_memory: Bytes(2 << 30),
            max_output: Bytes(1_000_000_000),
            max_log: Bytes(256_000),
            max_processes: 0,
            max_cpu: secs(0),
            nice: 0,
            no_network: false,
            read_only: false,
        }
    }
}

impl Default for Format {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            produces: None,
            base: None,
            verify: Vec::new(),
            extension: None,
            check: None,
            queue: "default".to_owned(),
            backoff: Vec::new(),
            transient_exit: vec![75],
            transient_output: Vec::new(),
            accept_exit: vec![0],
            retry_timeouts: false,
            env: BTreeMap::new(),
            env_file: None,
            precheck: Vec::new(),
            fingerprint: Vec::new(),
            timeout: None,
            kill_grace: None,
            max_memory: None,
            max_output: None,
            max_log: None,
            max_processes: None,
            max_cpu: None,
            nice: None,
            no_network: None,
            read_only: None,
        }
    }
}

impl Format {
    /// Lists everything that may hold placeholders as key, place in its list, text.
    pub fn arguments(&self) -> impl Iterator<Item = (&'static str, usize, &str)> {
        let lists = [
            ("command", &self.command),
            ("verify", &self.verify),
            ("precheck", &self.precheck),
            ("fingerprint", &self.fingerprint),
        ];
        lists
            .into_iter()
            .flat_map(|(key, list)| list.iter().enumerate().map(move |(at, text)| (key, at, text.as_str())))
            .chain(self.produces.iter().map(|text| ("produces", 0, text.as_str())))
    }

    /// Gives the bounds of this format's runs: its own where it has some, else those of `[limits]`.
    pub fn limits(&self, general: &Limits) -> Limits {
        Limits {
            timeout: self.timeout.unwrap_or(general.timeout),
            kill_grace: self.kill_grace.unwrap_or(general.kill_grace),
            max_memory: self.max_memory.unwrap_or(general.max_memory),
            max_output: self.max_output.unwrap_or(general.max_output),
            max_log: self.max_log.unwrap_or(general.max_log),
            max_processes: self.max_processes.unwrap_or(general.max_processes),
            max_cpu: self.max_cpu.unwrap_or(general.max_cpu),
            nice: self.nice.unwrap_or(general.nice),
            no_network: self.no_network.unwrap_or(general.no_network),
            read_only: self.read_only.unwrap_or(general.read_only),
        }
    }
}
