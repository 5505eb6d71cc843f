//! The queue as DESIGN tells it: rows in memory, written from its words and not from the statements.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use export_queue::clock::from_millis;
use export_queue::job::{Failure, Job, Outcome, Phase, Run, State, Waiting};
use export_queue::key::Key;
use export_queue::store::{Again, Ask, Cancelled, QueueBounds, Requested, Settled, Tally};

/// The time limit of every format.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// How long a failure is an answer.
const HOLD: TimeDelta = TimeDelta::seconds(60);

/// Farther ahead no rule reaches: such a time counts as reached.
const HORIZON: TimeDelta = TimeDelta::days(400);

/// The queues, each a name and its number in a transition.
pub(super) const QUEUES: [&str; 2] = ["default", "express"];

/// One file of the model: a title and a format; a PDF is made from the EPUB of its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) title: u8,
    pub(super) is_derived: bool,
}

impl Wanted {
    fn format(self) -> &'static str {
        if self.is_derived { "pdf" } else { "epub" }
    }

    pub(super) fn filename(self) -> String {
        format!("{}.{}", self.title, self.format())
    }

    fn base(self) -> Option<String> {
        self.is_derived.then(|| Self { is_derived: false, ..self }.filename())
    }
}

/// A step that somebody takes.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// The clock moves, also back.
    Pass(i64),
    Request(Request),
    /// A worker of that queue wants a job of these formats for the run of that number.
    Claim {
        queue: usize,
        formats: Vec<&'static str>,
        run: u32,
    },
    Progress(u32),
    /// The run has published, that many seconds ago.
    Finish {
        run: u32,
        ago: i64,
    },
    Fail {
        run: u32,
        reason: Failure,
        keeps_token: bool,
    },
    Requeue {
        run: u32,
        again: Back,
    },
    LetGo(u32),
    Cancel {
        wanted: Wanted,
        client: Option<&'static str>,
        force: bool,
    },
    Dismiss(Wanted),
    /// A tick saw a file for the job of that number, that many seconds old.
    Forget {
        id: i64,
        ago: i64,
    },
    /// Failures go after that many seconds, and beyond that many.
    Expire {
        after: i64,
        max: u64,
    },
    Swept(Wanted),
    StillThere {
        wanted: Wanted,
        ago: i64,
    },
    Prune {
        after: i64,
        max: u64,
    },
}

/// [`Again`] with seconds from now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Back {
    Interrupted,
    Stopped,
    Retry(i64),
    Base,
    Unable(i64),
    Wanted,
}

impl Back {
    pub(super) fn at(self, now: DateTime<Utc>) -> Again {
        let later = |secs| now + TimeDelta::seconds(secs);
        match self {
            Self::Interrupted => Again::Interrupted,
            Self::Stopped => Again::Stopped,
            Self::Retry(secs) => Again::Retry(later(secs)),
            Self::Base => Again::Base,
            Self::Unable(secs) => Again::Unable(later(secs)),
            Self::Wanted => Again::Wanted,
        }
    }
}

/// A wish, with seconds from now.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) wanted: Wanted,
    pub(super) queue: usize,
    pub(super) client: Option<&'static str>,
    pub(super) priority: i64,
    pub(super) later: Option<i64>,
    pub(super) refresh: bool,
    pub(super) retry: bool,
    pub(super) bounds: (u64, u64),
}

impl Request {
    pub(super) fn ask(&self, now: DateTime<Utc>) -> Ask {
        let key = Key {
            title: self.wanted.title.to_string(),
            lang: "en".into(),
            font: "default".into(),
            format: self.wanted.format().into(),
            options: BTreeMap::new(),
        };
        Ask {
            key,
            filename: self.wanted.filename(),
            base_filename: self.wanted.base(),
            queue: QUEUES[self.queue].into(),
            client: self.client.map(str::to_owned),
            meta: None,
            pages: None,
            priority: self.priority,
            rank: None,
            not_before: self.later.map(|secs| now + TimeDelta::seconds(secs)),
            wait_until: None,
            refresh: self.refresh,
            retry: self.retry,
            hold: HOLD.to_std().expect("a positive time"),
            bounds: QueueBounds { queued: self.bounds.0, per_client: self.bounds.1 },
        }
    }
}

/// A row: the job that everybody sees, and what only the store knows.
#[derive(Debug, Clone)]
struct Row {
    job: Job,
    /// Asked for again while its processes would not die.
    wanted_at: Option<DateTime<Utc>>,
    askers: BTreeSet<&'static str>,
}

/// The whole queue, and the answer to the last step.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) now: DateTime<Utc>,
    /// What the last step was answered.
    pub(super) answer: String,
    /// How many runs were tried, claimed or not.
    pub(super) runs_tried: u32,
    /// The jobs as they were claimed, by run.
    pub(super) claimed: BTreeMap<u32, Job>,
    rows: Vec<Row>,
    last_id: i64,
    history: Vec<Run>,
    /// The run that speaks for a file.
    present: BTreeMap<String, String>,
}

/// The token of a run.
pub(super) fn token(run: u32) -> String {
    format!("run {run:04}")
}

impl Default for Model {
    fn default() -> Self {
        Self {
            now: from_millis(1_700_000_000_000),
            answer: String::new(),
            runs_tried: 0,
            claimed: BTreeMap::new(),
            rows: Vec::new(),
            last_id: 0,
            history: Vec::new(),
            present: BTreeMap::new(),
        }
    }
}

/// The record of a run as its worker writes it; a run that was never claimed has one of a job that is not there.
pub(super) fn record(claimed: &BTreeMap<u32, Job>, run: u32, outcome: Outcome, now: DateTime<Utc>) -> Run {
    let nobodys = || Job { last_run: Some(token(run)), ..blank(now) };
    claimed.get(&run).cloned().unwrap_or_else(nobodys).run(outcome, now)
}

fn blank(now: DateTime<Utc>) -> Job {
    let wish = Request {
        wanted: Wanted { title: 99, is_derived: false },
        queue: 0,
        client: None,
        priority: 10,
        later: None,
        refresh: false,
        retry: false,
        bounds: (0, 0),
    };
    new_job(0, &wish.ask(now), 0, now)
}

fn new_job(id: i64, ask: &Ask, rank: i64, now: DateTime<Utc>) -> Job {
    Job {
        id,
        key: ask.key.clone(),
        filename: ask.filename.clone(),
        base_filename: ask.base_filename.clone(),
        queue: ask.queue.clone(),
        client: ask.client.clone(),
        meta: None,
        priority: ask.priority,
        rank,
        submitted_at: now,
        newer_than: ask.refresh.then_some(now),
        cancel_at: None,
        attempts: 0,
        retries: 0,
        interruptions: 0,
        stops: 0,
        base_waits: 0,
        last_run: None,
        phase: Phase::Queued { later: ask.not_before.filter(|at| *at > now).map(|at| (at, Waiting::NotBefore)) },
    }
}

fn is_live(job: &Job) -> bool {
    matches!(job.phase, Phase::Queued { .. } | Phase::Started { .. })
}

fn token_of(job: &Job) -> Option<&str> {
    match &job.phase {
        Phase::Queued { .. } => None,
        Phase::Started { token, .. } => Some(token),
        Phase::Failed { token, .. } => token.as_deref(),
    }
}

fn is_started_by(job: &Job, run: u32) -> bool {
    matches!(job.phase, Phase::Started { .. }) && token_of(job) == Some(&token(run))
}

/// A failed job that nothing is left of.
fn is_settled(job: &Job) -> bool {
    matches!(job.phase, Phase::Failed { token: None, .. })
}

impl Model {
    fn row(&mut self, filename: &str) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.job.filename == filename)
    }

    fn started_by(&mut self, run: u32) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| is_started_by(&row.job, run))
    }

    fn remove(&mut self, id: i64) {
        self.rows.retain(|row| row.job.id != id);
    }

    fn is_reached(&self, at: DateTime<Utc>) -> bool {
        at <= self.now || at > self.now + HORIZON
    }

    /// Queued, and not put off.
    fn is_ripe(&self, job: &Job) -> bool {
        matches!(job.phase, Phase::Queued { later } if later.is_none_or(|(at, _)| self.is_reached(at)))
    }

    /// Due: ripe, and no row of its base is live.
    fn is_due(&self, job: &Job) -> bool {
        let is_base = |row: &&Row| Some(&row.job.filename) == job.base_filename.as_ref();
        self.is_ripe(job) && !self.rows.iter().filter(is_base).any(|row| is_live(&row.job))
    }

    /// Submission and two minutes a step of priority; a minute behind the client's last live job of that priority.
    fn rank(&self, ask: &Ask) -> i64 {
        let own = self.now.timestamp_millis() + ask.priority * 120_000;
        let is_the_clients = |job: &&Job| {
            ask.client.is_some() && job.client == ask.client && job.priority == ask.priority && is_live(job)
        };
        let last = self.jobs().filter(is_the_clients).map(|job| job.rank + 60_000).max();
        last.map_or(own, |last| own.max(last))
    }

    fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.rows.iter().map(|row| &row.job)
    }

    /// Takes a step and notes what it is answered.
    pub(super) fn take(&mut self, step: &Step) {
        self.answer = match step {
            Step::Pass(secs) => {
                self.now += TimeDelta::seconds(*secs);
                String::new()
            }
            Step::Request(request) => format!("{:?}", self.request(request)),
            Step::Claim { queue, formats, run } => format!("{:?}", self.claim(QUEUES[*queue], formats, *run)),
            Step::Progress(run) => {
                self.note_progress(*run);
                String::new()
            }
            Step::Finish { run, ago } => format!("{:?}", self.finish(*run, self.ago(*ago))),
            Step::Fail { run, reason, keeps_token } => format!("{:?}", self.fail(*run, *reason, *keeps_token)),
            Step::Requeue { run, again } => format!("{:?}", self.requeue(*run, again.at(self.now))),
            Step::LetGo(run) => format!("{:?}", self.let_go(*run)),
            Step::Cancel { wanted, client, force } => format!("{:?}", self.cancel(*wanted, *client, *force)),
            Step::Dismiss(wanted) => format!("{:?}", self.dismiss(*wanted)),
            Step::Forget { id, ago } => format!("{:?}", self.forget(*id, self.ago(*ago))),
            Step::Expire { after, max } => format!("{:?}", self.expire(self.ago(*after), *max)),
            Step::Swept(wanted) => {
                self.present.remove(&wanted.filename());
                String::new()
            }
            Step::StillThere { wanted, ago } => {
                let (speaker, date) = (self.present.get(&wanted.filename()).cloned(), self.ago(*ago));
                if let Some(run) = self.history.iter_mut().find(|run| Some(&run.token) == speaker.as_ref()) {
                    run.published_at = Some(date);
                }
                String::new()
            }
            Step::Prune { after, max } => format!("{:?}", self.prune(self.ago(*after), *max)),
        };
    }

    fn ago(&self, secs: i64) -> DateTime<Utc> {
        self.now - TimeDelta::seconds(secs)
    }

    fn request(&mut self, request: &Request) -> Requested {
        let requested = self.request_one(request);
        if let (true, Requested::Queued(_) | Requested::Joined(_)) = (request.retry, &requested) {
            self.retry_relatives(request.wanted);
        }
        requested
    }

    /// With a job that is tried again its failed base is, and what failed for its sake.
    fn retry_relatives(&mut self, wanted: Wanted) {
        let now = self.now;
        let is_relative = |job: &Job| match &job.phase {
            Phase::Failed { token: None, reason, .. } => {
                Some(&job.filename) == wanted.base().as_ref()
                    || job.base_filename == Some(wanted.filename()) && *reason == Failure::BaseFailed
            }
            _ => false,
        };
        for row in self.rows.iter_mut().filter(|row| is_relative(&row.job)) {
            row.start_afresh(now);
        }
    }

    fn request_one(&mut self, request: &Request) -> Requested {
        let (now, ask) = (self.now, request.ask(self.now));
        let rank = self.rank(&ask);
        let bounds = self.refusal(&ask);
        let next_id = self.last_id + 1;
        let Some(row) = self.row(&ask.filename) else {
            if let Some(refusal) = bounds {
                return refusal;
            }
            let job = new_job(next_id, &ask, rank, now);
            self.last_id = next_id;
            self.rows.push(Row {
                job: job.clone(),
                wanted_at: None,
                askers: BTreeSet::from([request.client.unwrap_or_default()]),
            });
            return Requested::Queued(job);
        };
        if is_live(&row.job) {
            row.join(&ask, rank, now);
            row.askers.insert(request.client.unwrap_or_default());
            return Requested::Joined(row.job.clone());
        }
        if !is_settled(&row.job) {
            row.wanted_at = Some(now);
            row.askers.insert(request.client.unwrap_or_default());
            return Requested::Failing(row.job.clone());
        }
        let is_held = matches!(row.job.phase, Phase::Failed { at, .. } if at <= now && now - at < HOLD);
        if is_held && !ask.retry {
            return Requested::Failing(row.job.clone());
        }
        if let Some(refusal) = bounds {
            return refusal;
        }
        // A fresh job in the old row: only its number and the log of its last run stay.
        let last_run = row.job.last_run.take();
        row.job = Job { last_run, ..new_job(row.job.id, &ask, rank, now) };
        row.askers = BTreeSet::from([request.client.unwrap_or_default()]);
        Requested::Queued(row.job.clone())
    }

    fn refusal(&self, ask: &Ask) -> Option<Requested> {
        let here = |job: &&Job| job.queue == ask.queue;
        let queued = self.jobs().filter(here).filter(|job| job.state() == State::Queued).count() as u64;
        let own = |job: &&Job| ask.client.is_some() && job.client == ask.client && is_live(job);
        let own = self.jobs().filter(here).filter(own).count() as u64;
        let QueueBounds { queued: bound, per_client } = ask.bounds;
        if bound > 0 && queued >= bound {
            Some(Requested::QueueFull)
        } else if per_client > 0 && own >= per_client {
            Some(Requested::ClientLimit)
        } else {
            None
        }
    }

    fn claim(&mut self, queue: &str, formats: &[&str], run: u32) -> Option<Job> {
        self.runs_tried = self.runs_tried.max(run + 1);
        let now = self.now;
        // Whoever claims takes note of every time that has come.
        let reached: Vec<i64> = self.jobs().filter(|job| self.is_ripe(job)).map(|job| job.id).collect();
        let ripe = self.rows.iter_mut().filter(|row| reached.contains(&row.job.id));
        ripe.for_each(|row| row.job.phase = Phase::Queued { later: None });
        let can = |job: &&Job| job.queue == queue && formats.contains(&job.key.format.as_str());
        let due = self.jobs().filter(|job| self.is_due(job)).filter(can);
        let id = due.min_by_key(|job| (job.rank, job.id))?.id;
        let job = &mut self.rows.iter_mut().find(|row| row.job.id == id)?.job;
        job.attempts += 1;
        job.last_run = Some(token(run));
        job.phase = Phase::Started {
            token: token(run),
            slot: format!("{queue}.0"),
            worker: "7.8".into(),
            since: job.newer_than.map_or(now, |newer| newer.max(now)),
            deadline: now + LIMIT,
            progress: None,
        };
        let job = job.clone();
        self.claimed.insert(run, job.clone());
        Some(job)
    }

    fn note_progress(&mut self, run: u32) {
        if let Some(Row { job: Job { phase: Phase::Started { progress, .. }, .. }, .. }) = self.started_by(run) {
            *progress = Some("half".into());
        }
    }

    fn finish(&mut self, run: u32, published_at: DateTime<Utc>) -> Settled {
        let Some(row) = self.started_by(run) else {
            return Settled::Lost;
        };
        let Phase::Started { since, .. } = row.job.phase else { unreachable!("it is started") };
        let settled = match row.job.newer_than {
            // A newer file was asked for since: this one does not count.
            Some(newer) if newer > since => {
                row.job.newer_than = Some(newer.max(published_at + TimeDelta::milliseconds(1)));
                row.put_back(Again::Wanted);
                Settled::QueuedAgain
            }
            _ => {
                let id = row.job.id;
                self.remove(id);
                Settled::Forgotten
            }
        };
        let done = record(&self.claimed, run, Outcome::Ready, self.now);
        self.present.insert(done.filename.clone(), done.token.clone());
        self.remember(Run { published_at: Some(published_at), ..done });
        settled
    }

    fn remember(&mut self, run: Run) {
        if self.history.iter().all(|known| known.token != run.token) {
            self.history.push(run);
        }
    }

    fn fail(&mut self, run: u32, reason: Failure, keeps_token: bool) -> bool {
        let now = self.now;
        let Some(row) = self.started_by(run) else {
            return false;
        };
        row.job.cancel_at = None;
        let token = keeps_token.then(|| token(run));
        row.job.phase = Phase::Failed { reason, detail: "in words".into(), at: now, token };
        let done = record(&self.claimed, run, Outcome::from(reason.state()), now);
        self.remember(Run { reason: Some(reason), ..done });
        true
    }

    fn requeue(&mut self, run: u32, again: Again) -> bool {
        let row = self.started_by(run);
        row.map(|row| row.put_back(again)).is_some()
    }

    fn let_go(&mut self, run: u32) -> bool {
        let has_it = |row: &&mut Row| !is_live(&row.job) && token_of(&row.job) == Some(&token(run));
        let Some(row) = self.rows.iter_mut().find(has_it) else {
            return false;
        };
        match row.wanted_at.take() {
            None => {
                if let Phase::Failed { token, .. } = &mut row.job.phase {
                    *token = None;
                }
            }
            Some(wanted_at) => {
                row.start_afresh(wanted_at);
            }
        }
        true
    }

    fn cancel(&mut self, wanted: Wanted, client: Option<&'static str>, force: bool) -> Cancelled {
        let now = self.now;
        let Some(row) = self.row(&wanted.filename()).filter(|row| is_live(&row.job)) else {
            return Cancelled::NotLive;
        };
        row.askers.remove(client.unwrap_or_default());
        if !row.askers.is_empty() && !force {
            return Cancelled::StillWanted(row.askers.len() as u64);
        }
        if row.job.state() == State::Started {
            row.job.cancel_at = Some(now);
            return Cancelled::Marked;
        }
        let id = row.job.id;
        self.remove(id);
        Cancelled::Removed
    }

    fn dismiss(&mut self, wanted: Wanted) -> bool {
        let id = self.row(&wanted.filename()).filter(|row| is_settled(&row.job)).map(|row| row.job.id);
        id.map(|id| self.remove(id)).is_some()
    }

    fn forget(&mut self, id: i64, published_at: DateTime<Utc>) -> bool {
        let is_fulfilled = |job: &&Job| job.id == id && token_of(job).is_none() && job.wanted_since() <= published_at;
        let is_there = self.jobs().any(|job| is_fulfilled(&job));
        if is_there {
            self.remove(id);
        }
        is_there
    }

    fn expire(&mut self, before: DateTime<Utc>, max: u64) -> u64 {
        let failed_at = |job: &Job| match &job.phase {
            Phase::Failed { at, .. } => Some((*at, job.id)),
            Phase::Queued { .. } | Phase::Started { .. } => None,
        };
        let mut failures: Vec<_> = self.jobs().filter_map(failed_at).collect();
        failures.sort_unstable();
        failures.reverse();
        let kept = failures.into_iter().take(usize::try_from(max).unwrap_or(usize::MAX));
        let is_kept = |at: DateTime<Utc>| at >= before && at <= self.now + HORIZON;
        let kept: BTreeSet<i64> = kept.filter(|(at, _)| is_kept(*at)).map(|(_, id)| id).collect();
        let count = self.rows.len();
        self.rows.retain(|row| !is_settled(&row.job) || kept.contains(&row.job.id));
        (count - self.rows.len()) as u64
    }

    fn prune(&mut self, before: DateTime<Utc>, max: u64) -> u64 {
        let kept: BTreeSet<String> = self.history().into_iter().take(max as usize).map(|run| run.token).collect();
        let count = self.history.len();
        let present: BTreeSet<&String> = self.present.values().collect();
        self.history
            .retain(|run| present.contains(&run.token) || (run.finished_at >= before && kept.contains(&run.token)));
        (count - self.history.len()) as u64
    }

    /// Runs, the latest first.
    pub(super) fn history(&self) -> Vec<Run> {
        let mut history = self.history.clone();
        history.sort_by(|a, b| b.finished_at.cmp(&a.finished_at).then(a.token.cmp(&b.token)));
        history
    }

    /// Jobs in the order in which they would start: the started first, the failed last.
    pub(super) fn list(&self) -> Vec<Job> {
        let place = |job: &Job| match job.phase {
            Phase::Started { .. } => 0,
            Phase::Queued { .. } => 1,
            Phase::Failed { .. } => 2,
        };
        let mut jobs: Vec<Job> = self.jobs().cloned().collect();
        jobs.sort_by_key(|job| (place(job), job.queue.clone(), job.rank, job.id));
        jobs
    }

    pub(super) fn tally(&self) -> Vec<Tally> {
        let tally = |queue: &&str| {
            let jobs: Vec<&Job> = self.jobs().filter(|job| job.queue == **queue).collect();
            let count = |claim: &dyn Fn(&Job) -> bool| jobs.iter().filter(|job| claim(job)).count() as u64;
            let queued = |job: &Job| job.state() == State::Queued;
            Tally {
                queue: (*queue).to_owned(),
                queued: count(&queued),
                due: count(&|job| self.is_ripe(job)),
                started: count(&|job| job.state() == State::Started),
                failed: count(&|job| !is_live(job)),
                oldest: jobs.iter().filter(|job| queued(job)).map(|job| job.submitted_at).min(),
            }
        };
        let holds_any = |queue: &&&str| self.jobs().any(|job| job.queue == ***queue);
        QUEUES.iter().filter(holds_any).map(tally).collect()
    }

    pub(super) fn due(&self, queue: &str, formats: &[&str]) -> u32 {
        let is_asked = |job: &&Job| job.queue == queue && formats.contains(&job.key.format.as_str());
        self.jobs().filter(is_asked).filter(|job| self.is_due(job)).count() as u32
    }

    pub(super) fn ahead(&self, job: &Job) -> u32 {
        let is_ahead = |other: &&Job| {
            other.state() == State::Queued && other.queue == job.queue && (other.rank, other.id) < (job.rank, job.id)
        };
        self.jobs().filter(is_ahead).count() as u32
    }

    /// The started jobs of a queue, and the failed whose processes would not die.
    pub(super) fn slots_taken(&self, queue: &str) -> u32 {
        self.jobs().filter(|job| job.queue == queue && token_of(job).is_some()).count() as u32
    }

    pub(super) fn tokens(&self) -> BTreeSet<String> {
        let last_runs = self.jobs().filter_map(|job| job.last_run.clone());
        last_runs.chain(self.jobs().filter_map(|job| token_of(job).map(str::to_owned))).collect()
    }

    pub(super) fn needed_bases(&self) -> BTreeMap<String, DateTime<Utc>> {
        let mut needed = BTreeMap::new();
        for job in self.jobs().filter(|job| is_live(job)) {
            if let Some(base) = &job.base_filename {
                let since = needed.entry(base.clone()).or_insert(job.submitted_at);
                *since = job.submitted_at.min(*since);
            }
        }
        needed
    }

    /// The files that somebody has published and nobody has seen gone.
    fn files(&self) -> impl Iterator<Item = (&String, DateTime<Utc>)> {
        let speaks = |run: &&Run| self.present.get(&run.filename) == Some(&run.token);
        self.history.iter().filter(speaks).filter_map(|run| Some((&run.filename, run.published_at?)))
    }

    pub(super) fn files_before(&self, before: DateTime<Utc>) -> BTreeSet<String> {
        let is_strange = |at: DateTime<Utc>| at > self.now + TimeDelta::minutes(1);
        self.files().filter(|(_, at)| *at < before || is_strange(*at)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn fulfilled(&self, since: DateTime<Utc>) -> BTreeSet<(i64, String)> {
        let by = |name: &str| self.files().find(|(file, _)| *file == name).map(|(_, at)| at).filter(|at| *at >= since);
        let is_fulfilled =
            |job: &&Job| token_of(job).is_none() && by(&job.filename).is_some_and(|at| at >= job.wanted_since());
        self.jobs().filter(is_fulfilled).map(|job| (job.id, job.filename.clone())).collect()
    }
}

impl Row {
    /// Queued at its old place as if nothing had been tried.
    fn start_afresh(&mut self, submitted_at: DateTime<Utc>) {
        let counts = [&mut self.job.attempts, &mut self.job.retries, &mut self.job.interruptions];
        counts.into_iter().chain([&mut self.job.stops, &mut self.job.base_waits]).for_each(|count| *count = 0);
        self.job.submitted_at = submitted_at;
        self.job.phase = Phase::Queued { later: None };
        self.wanted_at = None;
    }

    fn join(&mut self, ask: &Ask, rank: i64, now: DateTime<Utc>) {
        let job = &mut self.job;
        if ask.priority < job.priority {
            job.rank = job.rank.min(rank);
            job.priority = ask.priority;
        }
        // Whoever wants it sooner gets it sooner.
        if let Phase::Queued { later: Some((due, Waiting::NotBefore)) } = job.phase {
            let asked = ask.not_before.filter(|at| *at > now);
            job.phase = Phase::Queued { later: asked.map(|at| (at.min(due), Waiting::NotBefore)) };
        }
        // What was just cancelled is wanted after all: what the run makes does not count.
        if ask.refresh || job.cancel_at.is_some() {
            job.newer_than = Some(now);
        }
    }

    fn put_back(&mut self, again: Again) {
        let job = &mut self.job;
        job.cancel_at = None;
        let mut later = None;
        match again {
            Again::Interrupted => job.interruptions += 1,
            Again::Stopped => job.stops += 1,
            Again::Retry(at) => {
                job.retries += 1;
                later = Some((at, Waiting::BackingOff));
            }
            Again::Base => {
                job.attempts -= 1;
                job.base_waits += 1;
            }
            Again::Unable(at) => {
                job.attempts -= 1;
                later = Some((at, Waiting::BackingOff));
            }
            Again::Wanted => {}
        }
        job.phase = Phase::Queued { later };
    }
}
