//! How a file is asked for, beside what it is: the same words on the command line and in a batch.

use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};

use crate::config::Config;
use crate::exit::Refusal;
use crate::rules::{self, HORIZON};
use crate::store::{Ask, QueueBounds};
use crate::template::nearest;

/// The largest number of a priority.
const MAX_PRIORITY: i64 = 1000;

/// The longest `--meta`, in bytes.
const MAX_META: usize = 4096;

/// The longest name of a client, in bytes.
const MAX_CLIENT: usize = 128;

/// How a file is asked for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// A new file although one is ready.
    pub refresh: bool,
    /// A young failure is not an answer.
    pub retry: bool,
    /// 0 to 1000, lower first.
    pub priority: Option<i64>,
    /// Who asks.
    pub client: Option<String>,
    /// What the caller wants to have back, JSON.
    pub meta: Option<String>,
    /// How large the book is, in pages.
    pub pages: Option<u32>,
    /// The lane to wait in, whatever the format's is.
    pub queue: Option<String>,
    /// Not to be started before so long from now.
    pub delay: Option<Duration>,
    /// Not to be started before this.
    pub not_before: Option<DateTime<Utc>>,
    /// How long the caller waits at most.
    pub max_wait: Option<Duration>,
}

impl Wishes {
    /// Looks whether all of it can be granted.
    ///
    /// # Errors
    /// A value is out of its range or names nothing (2).
    pub fn check(&self, config: &Config, now: DateTime<Utc>) -> Result<()> {
        self.fault(config, now).map_or(Ok(()), |fault| Err(Refusal::usage(fault)))
    }

    pub(super) fn fault(&self, config: &Config, now: DateTime<Utc>) -> Option<String> {
        if self.priority.is_some_and(|priority| !(0..=MAX_PRIORITY).contains(&priority)) {
            return Some(format!("a priority is 0 to {MAX_PRIORITY}"));
        }
        if self.client.as_deref().is_some_and(|client| !is_client(client)) {
            return Some(format!("a client is 1 to {MAX_CLIENT} bytes, not blank, without control characters"));
        }
        if self.meta.as_ref().is_some_and(|meta| meta.len() > MAX_META) {
            return Some(format!("meta is longer than {MAX_META} bytes"));
        }
        if let Some(Err(error)) = self.meta.as_deref().map(serde_json::from_str::<serde_json::Value>) {
            return Some(format!("meta is not JSON: {error}"));
        }
        if self.delay.is_some() && self.not_before.is_some() {
            return Some("a delay and a time not before which: only one of them can be meant".to_owned());
        }
        let too_far = HORIZON.as_secs() / 86_400;
        if self.starts_at(now).is_some_and(|at| (at - now).to_std().is_ok_and(|ahead| ahead >= HORIZON)) {
            return Some(format!("that is {too_far} days ahead or more"));
        }
        let queue = self.queue.as_deref().filter(|queue| !config.queue.contains_key(*queue))?;
        Some(unknown_queue(config, queue))
    }

    /// Before when it shall not start.
    pub fn starts_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.not_before.or_else(|| self.delay.map(|delay| now + delay))
    }

    /// The lane for a format: the one that is named, else the one for books of that size, else the format's.
    pub fn queue<'a>(&'a self, config: &'a Config, format: &str) -> &'a str {
        let by_size = self.pages.and_then(|pages| queue_of_size(config, pages));
        self.queue.as_deref().or(by_size).unwrap_or_else(|| config.queue_of_format(format))
    }

    /// What the store is asked for a key that has this file name and base.
    pub(super) fn ask(
        &self,
        config: &Config,
        key: crate::key::Key,
        (filename, base_filename): (String, Option<String>),
        now: DateTime<Utc>,
    ) -> Ask {
        let queue = self.queue(config, &key.format).to_owned();
        let limits = config.queue.get(&queue);
        Ask {
            base_filename,
            bounds: limits.map_or_else(QueueBounds::default, |queue| QueueBounds {
                queued: queue.max_queued,
                per_client: queue.max_queued_per_client,
            }),
            key,
            filename,
            queue,
            client: self.client.clone(),
            meta: self.meta.clone(),
            pages: self.pages,
            priority: self.priority.unwrap_or(rules::DEFAULT_PRIORITY),
            rank: None,
            not_before: self.starts_at(now),
            wait_until: self.max_wait.map(|wait| now + wait),
            refresh: self.refresh,
            retry: self.retry,
            hold: config.failures.hold.0,
        }
    }
}

/// The express lane of small books, or the lane of big ones with the highest threshold that is reached.
fn queue_of_size(config: &Config, pages: u32) -> Option<&str> {
    let bypass = config.bypass.as_ref().filter(|bypass| pages <= bypass.max_pages);
    let big = config.queue.iter().filter(|(_, queue)| (1..=pages).contains(&queue.min_pages));
    let biggest = big.max_by_key(|(_, queue)| queue.min_pages).map(|(name, _)| name.as_str());
    bypass.map(|bypass| bypass.queue.as_str()).or(biggest)
}

fn is_client(client: &str) -> bool {
    client.len() <= MAX_CLIENT && !client.trim().is_empty() && !client.chars().any(char::is_control)
}

/// What is said of a queue that is not configured.
pub fn unknown_queue(config: &Config, queue: &str) -> String {
    let known = config.queue.keys().map(String::as_str);
    let hint = nearest(queue, known.clone()).map(|near| format!(": did you mean `{near}`?"));
    let all = || format!(": there are {}", known.collect::<Vec<_>>().join(", "));
    format!("unknown queue `{}`{}", crate::exporter::plain(queue), hint.unwrap_or_else(all))
}
