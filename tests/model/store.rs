//! The store's verbs in any order: after each, every row and every answer is what the model says.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use chrono::TimeDelta;
use export_queue::job::{Failure, Job, Outcome, Run};
use export_queue::store::sqlite::Sqlite;
use export_queue::store::{Claim, FailureNote, Filter, Store};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tempfile::TempDir;

use super::queue::{Back, LIMIT, Model, QUEUES, Request, Step, Wanted, record, token};

const FORMATS: [&str; 2] = ["epub", "pdf"];
const CLIENTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// Farther ahead than any rule reaches, in seconds.
const BEYOND: i64 = 401 * 24 * 3600;

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Step> {
        let next = state.runs_tried;
        // Mostly the latest runs, sometimes one that lost its row long ago, rarely one that never was.
        let run = || next.saturating_sub(5)..=next;
        let queue = || 0..QUEUES.len();
        let formats = || proptest::sample::subsequence(FORMATS.to_vec(), 1..=2);
        let ago = || prop::sample::select(vec![0, 1, 5, 100, -1, -90]);
        let claim = (queue(), formats()).prop_map(move |(queue, formats)| Step::Claim { queue, formats, run: next });
        prop_oneof![
            3 => prop::sample::select(vec![0, 1, 5, 30, 61, 3600, -1, -40, BEYOND]).prop_map(Step::Pass),
            8 => request().prop_map(Step::Request),
            7 => claim,
            1 => run().prop_map(Step::Progress),
            3 => (run(), ago()).prop_map(|(run, ago)| Step::Finish { run, ago }),
            4 => (run(), failure()).prop_map(|(run, (reason, keeps_token))| Step::Fail { run, reason, keeps_token }),
            3 => (run(), back()).prop_map(|(run, again)| Step::Requeue { run, again }),
            2 => run().prop_map(Step::LetGo),
            3 => (wanted(), client(), any::<bool>())
                .prop_map(|(wanted, client, force)| Step::Cancel { wanted, client, force }),
            1 => wanted().prop_map(Step::Dismiss),
            1 => (1_i64..12, ago()).prop_map(|(id, ago)| Step::Forget { id, ago }),
            1 => (prop::sample::select(vec![0, 10, 3600]), 0_u64..4).prop_map(|(after, max)| Step::Expire { after, max }),
            1 => wanted().prop_map(Step::Swept),
            1 => (wanted(), ago()).prop_map(|(wanted, ago)| Step::StillThere { wanted, ago }),
            1 => (prop::sample::select(vec![0, 10, 3600]), 0_u64..6).prop_map(|(after, max)| Step::Prune { after, max }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        state.take(step);
        state
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (0_u8..2, any::<bool>()).prop_map(|(title, is_derived)| Wanted { title, is_derived })
}

fn client() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(CLIENTS.to_vec())
}

fn request() -> impl Strategy<Value = Request> {
    let priority = prop::sample::select(vec![0, 1, 10, 10, 90, 1000]);
    let later = prop::sample::select(vec![None, None, None, Some(-5), Some(10), Some(70), Some(BEYOND)]);
    let rarely = || prop::bool::weighted(0.25);
    let bounds = prop::sample::select(vec![(0, 0), (0, 0), (2, 0), (0, 1), (3, 2)]);
    let parts = (wanted(), 0..QUEUES.len(), client(), priority, later, (rarely(), rarely()), bounds);
    parts.prop_map(|(wanted, queue, client, priority, later, (refresh, retry), bounds)| Request {
        wanted,
        queue,
        client,
        priority,
        later,
        refresh,
        retry,
        bounds,
    })
}

fn back() -> impl Strategy<Value = Back> {
    let (soon, later, beyond) = (Back::Retry(30), Back::Unable(10), Back::Retry(BEYOND));
    prop::sample::select(vec![Back::Interrupted, Back::Stopped, soon, Back::Base, later, beyond, Back::Wanted])
}

fn failure() -> impl Strategy<Value = (Failure, bool)> {
    let plain = [Failure::TimedOut, Failure::ExitNonzero, Failure::Cancelled].map(|reason| (reason, false));
    prop::sample::select([plain.as_slice(), &[(Failure::WouldNotDie, true)], &[(Failure::WouldNotDie, true)]].concat())
}

/// An engine under test.
trait Engine: 'static {
    /// A fresh store, and the directory that it lies in.
    fn fresh() -> (Box<dyn Store>, Option<TempDir>);
}

struct OnSqlite;

impl Engine for OnSqlite {
    fn fresh() -> (Box<dyn Store>, Option<TempDir>) {
        let dir = quick_dir();
        let path = dir.path().join("queue.db");
        std::fs::write(&path, "").expect("an empty file");
        (Box::new(Sqlite::open(&path, "the id").expect("a queue")), Some(dir))
    }
}

#[cfg(feature = "postgres")]
struct OnPostgres;

#[cfg(feature = "postgres")]
impl Engine for OnPostgres {
    fn fresh() -> (Box<dyn Store>, Option<TempDir>) {
        use export_queue::store::Patience;
        use export_queue::store::postgres::Postgres;
        let server = crate::harness::server::shared();
        let url = server.url(&server.fresh_database());
        (Box::new(Postgres::open_or_create(&url, "the id", Patience::OWNER).expect("a queue")), None)
    }
}

/// The store under test, and what its workers know.
struct Real<E: Engine> {
    store: Box<dyn Store>,
    claimed: BTreeMap<u32, Job>,
    _dir: Option<TempDir>,
    _engine: PhantomData<E>,
}

/// A directory in memory, where there is one: every write of the store waits for its disk.
pub(super) fn quick_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a directory")
}

fn with_limits(formats: &[&str]) -> Vec<(String, Duration)> {
    formats.iter().map(|format| ((*format).to_owned(), LIMIT)).collect()
}

impl<E: Engine> Real<E> {
    fn claim(&mut self, queue: &str, formats: &[&str], run: u32, model: &Model) -> Option<Job> {
        let claim = Claim {
            queue: queue.into(),
            formats: with_limits(formats),
            token: token(run),
            node: "node".into(),
            slot: format!("{queue}.0"),
            worker: "7.8".into(),
            max_running: 0,
            lease: LIMIT,
        };
        let job = self.store.claim(&claim, model.now).expect("a claim");
        self.claimed.extend(job.clone().map(|job| (run, job)));
        job
    }

    fn take(&mut self, step: &Step, model: &Model) -> String {
        let now = model.now;
        let ago = |secs: i64| now - TimeDelta::seconds(secs);
        let store = &mut self.store;
        match step {
            Step::Pass(_) => String::new(),
            Step::Request(request) => format!("{:?}", store.request(&request.ask(now), now).expect("a request")),
            Step::Claim { queue, formats, run } => format!("{:?}", self.claim(QUEUES[*queue], formats, *run, model)),
            Step::Progress(run) => {
                store.progress(&token(*run), "half").expect("a note");
                String::new()
            }
            Step::Finish { run, ago: secs } => {
                let done = record(&self.claimed, *run, Outcome::Ready, now);
                let done = Run { published_at: Some(ago(*secs)), ..done };
                format!("{:?}", store.finish(&done, "node").expect("an end"))
            }
            Step::Fail { run, reason, keeps_token } => {
                let done = record(&self.claimed, *run, Outcome::from(reason.state()), now);
                let done = Run { reason: Some(*reason), ..done };
                let note = FailureNote { reason: *reason, detail: "in words", keeps_token: *keeps_token };
                format!("{:?}", store.fail(&done, "node", &note).expect("an end"))
            }
            Step::Requeue { run, again } => {
                format!("{:?}", store.requeue(&token(*run), again.at(now), None).expect("a way back"))
            }
            Step::LetGo(run) => format!("{:?}", store.let_go(&token(*run)).expect("an end")),
            Step::Cancel { wanted, client, force } => {
                format!("{:?}", store.cancel(&wanted.filename(), *client, *force, now).expect("a cancel"))
            }
            Step::Dismiss(wanted) => format!("{:?}", store.dismiss(&wanted.filename()).expect("a deletion")),
            Step::Forget { id, ago: secs } => format!("{:?}", store.forget(*id, ago(*secs)).expect("a deletion")),
            Step::Expire { after, max } => {
                format!("{:?}", store.expire_failed(ago(*after), *max, now).expect("a deletion"))
            }
            Step::Swept(wanted) => {
                store.swept(&[wanted.filename()]).expect("a note");
                String::new()
            }
            Step::StillThere { wanted, ago: secs } => {
                store.still_there(&wanted.filename(), ago(*secs)).expect("a note");
                String::new()
            }
            Step::Prune { after, max } => {
                format!("{:?}", store.prune_history(ago(*after), *max).expect("a deletion"))
            }
        }
    }

    fn compare_rows(&self, model: &Model) {
        let jobs = model.list();
        assert_eq!(self.store.list(&Filter::default()).expect("rows"), jobs);
        for job in &jobs {
            assert_eq!(self.store.find(&job.filename).expect("a row").as_ref(), Some(job));
            assert_eq!(self.store.find_by_id(job.id).expect("a row").as_ref(), Some(job));
            assert_eq!(self.store.ahead(job).expect("a place"), model.ahead(job), "before {}", job.filename);
        }
        assert_eq!(self.store.tally(model.now).expect("counts"), model.tally());
        for queue in QUEUES {
            assert_eq!(self.store.count_started(queue).expect("a count"), model.slots_taken(queue));
            for formats in [&FORMATS[..], &FORMATS[..1], &FORMATS[1..]] {
                let due = self.store.due(queue, &with_limits(formats), model.now, 100).expect("a count");
                assert_eq!(due, model.due(queue, formats), "due in {queue} of {formats:?}");
            }
        }
    }

    fn compare_files(&self, model: &Model) {
        let store = &*self.store;
        assert_eq!(store.history(None, 1000).expect("runs"), model.history());
        assert_eq!(BTreeSet::from_iter(store.tokens().expect("tokens")), BTreeSet::from_iter(model.tokens()));
        assert_eq!(BTreeMap::from_iter(store.needed_bases().expect("bases")), model.needed_bases());
        for secs in [0, 3, 600] {
            let then = model.now - TimeDelta::seconds(secs);
            let due = store.due_files(then, model.now, (0, 100)).expect("files");
            assert_eq!(due.into_iter().collect::<BTreeSet<_>>(), model.files_before(then));
            let fulfilled = store.fulfilled(then).expect("jobs").into_iter().collect();
            assert_eq!(model.fulfilled(then), fulfilled, "since {secs} s ago");
        }
    }
}

impl<E: Engine> StateMachineTest for Real<E> {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let (store, dir) = E::fresh();
        Self { store, claimed: BTreeMap::new(), _dir: dir, _engine: PhantomData }
    }

    fn apply(mut state: Self, model: &Model, step: Step) -> Self {
        let answer = state.take(&step, model);
        assert_eq!(answer, model.answer, "the answer to {step:?}");
        state
    }

    fn check_invariants(state: &Self, model: &Model) {
        state.compare_rows(model);
        state.compare_files(model);
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_its_words_say(sequential 1..100 => Real<OnSqlite>);
}

#[cfg(feature = "postgres")]
prop_state_machine! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn postgres_does_what_its_words_say(sequential 1..100 => Real<OnPostgres>);
}
