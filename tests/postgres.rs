//! The queue on PostgreSQL, through the built program and a real server.

use std::fs;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use export_queue::exit::{Exit, exit_of};
use export_queue::store::postgres::{NEWEST, Postgres};
use export_queue::store::{Ask, Batch, Patience, QueueBounds, Store};

use crate::harness::server::{self, Server, TLS_NAME};
use crate::harness::{Queue, eventually, now, text};
use crate::store::{ask, at};

#[test]
fn a_title_goes_from_request_to_ready() {
    let queue = Queue::on(server::shared(), "");
    assert_eq!(queue.status("ok", "A Book")["state"], "absent");
    let asked = queue.request("ok", "A Book");
    assert_eq!((text(&asked["state"]), asked["position"].as_u64()), ("queued".to_owned(), Some(1)));
    queue.dispatch().code(0).silent();
    let ready = queue.status("ok", "A Book");
    assert_eq!(ready["state"], "ready");
    assert!(fs::metadata(text(&ready["path"])).is_ok_and(|meta| meta.len() > 0));
    assert!(!queue.path("state/queue.db").exists(), "nothing is kept in SQLite");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    assert_eq!(queue.sql("SELECT outcome FROM runs"), ["ready"]);
    queue.run(["check"]).code(0);
    queue.assert_quiet();
}

#[test]
fn failures_bases_and_pauses_are_as_on_sqlite() {
    let queue = Queue::on(server::shared(), "");
    queue.request("code1", "Broken");
    queue.dispatch().code(0);
    let failed = queue.status("code1", "Broken");
    assert_eq!((text(&failed["state"]), text(&failed["reason"])), ("failed_unknown".into(), "exit_nonzero".into()));
    queue.run(["pause", "--message", "back at noon"]).code(0);
    let waiting = queue.request("ok", "Later");
    assert_eq!((text(&waiting["reason"]), text(&waiting["message"])), ("paused".into(), "back at noon".into()));
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "queued");
    queue.run(["resume"]).code(0);
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Later"), "ready");
    queue.run(["cancel", "--format", "ok", "Never asked for"]).code(6);
    queue.assert_quiet();
}

#[test]
fn a_database_that_is_away_means_later_and_a_ready_file_is_served() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "Ready");
    queue.dispatch().code(0);
    server.down();
    assert_later_and_ready(&queue);
    // Who has the time waits for it.
    let config = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    let url = config.split('"').nth(1).expect("a URL").to_owned();
    let patience = Patience { each: Duration::from_secs(60), ..Patience::OWNER };
    let waiting = std::thread::spawn(move || Postgres::open(&url, patience).map(drop));
    server.up();
    waiting.join().expect("its answer").expect("the queue is back");
    queue.request("ok", "Other");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "Other"), "ready");
    // Stopped, it accepts connections and answers nobody.
    let pid = server.pid();
    crate::harness::kill(pid, "STOP");
    assert_later_and_ready(&queue);
    crate::harness::kill(pid, "CONT");
    eventually("it answers again", || (queue.run(["status", "Nothing"]).code == 6).then_some(()));
}

fn assert_later_and_ready(queue: &Queue) {
    assert_eq!(queue.state("ok", "Ready"), "ready");
    assert_eq!(queue.request("ok", "Ready")["state"], "ready");
    for verb in ["request", "status"] {
        let begun = now();
        let said = queue.run(["--json", verb, "--format", "ok", "Not ready"]).code(75);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{verb} took {took:?}");
        assert_eq!(said.json()["error"]["code"], 75);
        assert!(!said.out.contains("host="), "{}", said.out);
    }
}

#[test]
fn ten_first_starts_at_once_make_one_schema() {
    let server = server::shared();
    let first = Queue::on(server, "");
    let starts: Vec<_> = (0..10).map(|n| first.spawn(["request", &format!("Book {n}"), "--format", "ok"])).collect();
    for start in starts {
        start.wait().code(3);
    }
    assert_eq!(first.sql("SELECT count(*) FROM jobs"), ["10"]);
    first.dispatch().code(0);
    assert_eq!(first.published().len(), 10);
}

#[test]
fn what_the_server_refuses_is_said_with_its_mend() {
    let server = Server::own(&[]);
    let queue = Queue::on(server, "");
    queue.request("ok", "A");
    queue.sql("CREATE ROLE guest LOGIN");
    let said_of = |change: (&str, &str), code: i32, words: &str| {
        queue.reconfigure(change.0, change.1);
        for verb in ["request", "status"] {
            let said = queue.run([verb, "--format", "ok", "A"]).code(code);
            assert!(said.err.contains(words), "{verb}: {said:?}");
        }
        queue.reconfigure(change.1, change.0);
    };
    let (own, guests) = ("postgres://queue@", "postgres://guest@");
    said_of((own, guests), 77, "the owner must GRANT USAGE");
    queue.sql("GRANT USAGE ON SCHEMA export_queue TO guest");
    said_of((own, guests), 77, "this database user lacks a right");
    queue.sql("ALTER ROLE guest CONNECTION LIMIT 0");
    said_of((own, guests), 75, "the database is busy or away; try again later");
    queue.sql("CREATE ROLE keyed LOGIN PASSWORD 'key'");
    demand_password(&queue, server, "keyed");
    said_of(
        (own, "postgres://keyed@"),
        78,
        "see the password and channel_binding in `database` (invalid configuration: password missing)",
    );
    said_of((own, "postgres://keyed:wrong@"), 78, "the database does not accept this user or password");
    said_of((own, "postgres://keyed:key@"), 77, "the owner must GRANT USAGE");
    said_of((own, "postgres://nobody@"), 78, "the database does not accept this user or password");
    let tries = || server.log().matches("role \"nobody\" does not exist").count();
    let before = tries();
    let url = server.url("postgres").replace("queue@", "nobody@");
    Postgres::open(&url, Patience::OWNER).expect_err("nobody is let in");
    assert_eq!(tries() - before, 1, "it helps nobody to try that again");
    said_of(("/fresh_", "/nowhere_"), 78, "there is no such database");
    // Not as long as `request` may take, but until it has looked: a program that was in the middle when the queue was closed.
    queue.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'the queue moves' USING ERRCODE = 'EQ001'; END $$",
    );
    queue.sql("CREATE TRIGGER moves BEFORE INSERT ON jobs EXECUTE FUNCTION refuse()");
    let said = queue.run(["request", "--format", "ok", "B"]).code(75);
    assert!(said.err.contains("the queue moves to another database, or has moved"), "{said:?}");
    queue.sql("DROP TRIGGER moves ON jobs");
    queue.request("ok", "B");
    queue.sql("ALTER TABLE jobs RENAME TO gone");
    said_of(("x", "x"), 78, "it holds no queue: run `export-queue init`");
}

/// Lets a user in, who may not use the queue, with a password only.
fn demand_password(queue: &Queue, server: &Server, user: &str) {
    let doors = server.dir().join("data/pg_hba.conf");
    let rules = fs::read_to_string(&doors).expect("the server's doors");
    fs::write(&doors, format!("local all {user} scram-sha-256\n{rules}")).expect("a further rule");
    server.sql("postgres", "SELECT pg_reload_conf()");
    let (own, theirs) = ("postgres://queue@", format!("postgres://{user}@"));
    queue.reconfigure(own, &theirs);
    eventually("the rule counts", || (queue.run(["status", "A"]).code != 77).then_some(()));
    queue.reconfigure(&theirs, own);
}

#[test]
fn a_transaction_that_is_in_anothers_way_is_begun_again() {
    let queue = Queue::on(server::shared(), "");
    queue.run(["init"]).code(0);
    queue.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN IF nextval('tries') < 3 THEN RAISE EXCEPTION 'no' USING ERRCODE = TG_ARGV[0]; END IF; RETURN NEW; END $$",
    );
    let at_once = "TRIGGER refuse BEFORE INSERT ON jobs";
    let at_commit = "CONSTRAINT TRIGGER refuse AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED";
    for (moment, when) in [("at once", at_once), ("at commit", at_commit)] {
        for (state, code, tries) in [("40P01", 3, "3"), ("40001", 3, "3"), ("22000", 1, "1")] {
            queue.sql("DROP SEQUENCE IF EXISTS tries; CREATE SEQUENCE tries");
            queue.sql(&format!("CREATE {when} FOR EACH ROW EXECUTE FUNCTION refuse('{state}')"));
            queue.run(["request", "--format", "ok", &format!("{state} {moment}")]).code(code);
            assert_eq!(queue.sql("SELECT last_value FROM tries"), [tries], "{state} {moment}");
            queue.sql("DROP TRIGGER refuse ON jobs");
        }
    }
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["4"]);
}

/// One that gives up soon, and does not try again.
const SOON: Patience = Patience { each: Duration::from_secs(2), in_all: None, insists: false };

fn is_later<T>(said: anyhow::Result<T>) -> bool {
    said.is_err_and(|error| exit_of(&error) == Exit::TryLater)
}

#[test]
fn a_session_is_used_as_long_as_it_answers() {
    let server = server::shared();
    let database = server.fresh_database();
    let url = format!("{}&application_name=steady", server.url(&database));
    drop(Postgres::open_or_create(&url, "id", Patience::OWNER).expect("a queue"));
    let sessions = || -> Vec<i32> {
        let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'steady'";
        server.sql(&database, pids).iter().map(|pid| pid.parse().expect("a pid")).collect()
    };
    let none = |story| eventually(story, || sessions().is_empty().then_some(()));
    none("that of the setting up has ended");
    let store = Postgres::open(&url, SOON).expect("the queue");
    let first = sessions();
    for _ in 0..3 {
        store.started().expect("an answer");
        assert_eq!(sessions(), first);
    }
    server.sql(&database, &format!("SELECT pg_terminate_backend({})", first[0]));
    none("it is gone");
    store.started().expect("an answer to another");
    let [second] = sessions()[..] else { panic!("{:?}", sessions()) };
    // Silent, as where the way to the server was cut.
    crate::harness::kill(second, "STOP");
    let (silent, next) = (store.started(), store.started());
    crate::harness::kill(second, "CONT");
    assert!(is_later(silent));
    next.expect("an answer to a third");
}

/// Another transaction, open as long as this lives.
struct Open(Child);

impl Open {
    /// Begins it with a statement that takes a lock by number.
    fn new(server: &Server, database: &str, sql: &str) -> Self {
        let mut psql = server.program("psql");
        psql.args(["-X", "-q", "-U", "queue", "-d", database, "-h"]).arg(server.dir());
        let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql can be started");
        writeln!(child.stdin.as_mut().expect("its input"), "BEGIN; {sql};").expect("it reads");
        eventually("it holds its lock", || (server.sql(database, &locks(true)) != ["0"]).then_some(()));
        Self(child)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// How many locks by number are held or waited for in this database.
fn locks(are_held: bool) -> String {
    let here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    format!("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = {are_held} AND {here}")
}

#[test]
fn near_its_bound_a_queue_takes_one_transaction_after_another() {
    let server = server::shared();
    let database = server.fresh_database();
    let open = |patience| Postgres::open_or_create(&server.url(&database), "id", patience).expect("a queue");
    let (mut patient, mut soon) = (open(Patience::OWNER), open(SOON));
    let bounded = |title: &str, queued| Ask { bounds: QueueBounds { queued, per_client: 0 }, ..ask(title) };
    patient.request(&bounded("Known", 0), at(0)).expect("a job");
    let other =
        Open::new(server, &database, "SELECT pg_advisory_xact_lock_shared(hashtextextended('default', 4558505103))");
    // As many as are left might be brought by the other.
    for bound in [2, 1000] {
        assert!(is_later(soon.request(&bounded("Near", bound), at(0))), "of {bound}");
    }
    for bound in [1001, 5000] {
        patient.request(&bounded(&format!("Far {bound}"), bound), at(0)).expect("there is room for all");
    }
    patient.request_all(&[bounded("Unbounded", 0)], at(0)).expect("it needs no turn");
    std::thread::scope(|scope| {
        // It may take until nobody waits for it any more.
        scope.spawn(|| patient.request_all(&[bounded("Known", 0), bounded("Third", 9)], at(0)).map(drop));
        eventually("a batch waits for its turn", || (server.sql(&database, &locks(false)) == ["1"]).then_some(()));
        server.sql(&database, "SELECT 1 FROM jobs WHERE title = 'Known' FOR UPDATE NOWAIT");
        drop(other);
    });
    soon.request(&bounded("Near", 9), at(0)).expect("its turn has come");
}

#[test]
fn a_batch_takes_few_statements() {
    let server = server::shared();
    let database = server.fresh_database();
    server.sql(&database, &format!("ALTER DATABASE {database} SET log_statement = 'all'"));
    let mut store = Postgres::open_or_create(&server.url(&database), "id", Patience::OWNER).expect("a queue");
    let asks: Vec<Ask> =
        (0..100).map(|n| Ask { client: Some(format!("c{}", n % 3)), ..ask(&format!("Book {n}")) }).collect();
    // Of no other database is a statement that went well noted.
    let noted = || server.log().matches("LOG:  execute").count();
    for expected in [(100, 0), (0, 100)] {
        let before = noted();
        let Batch::Stored { queued, joined, .. } = store.request_all(&asks, at(0)).expect("a batch") else {
            panic!("refused")
        };
        assert_eq!((queued, joined), expected);
        let took = noted() - before;
        assert!((1..20).contains(&took), "{took} statements");
    }
}

#[test]
fn a_schema_that_is_too_new_is_left_alone_and_one_that_allows_us_is_used() {
    let queue = Queue::on(server::shared(), "");
    queue.request("ok", "A");
    queue.sql("UPDATE meta SET value = '99' WHERE name = 'schema'");
    assert_eq!(queue.request("ok", "B")["state"], "queued", "this version may still write");
    queue.sql(&format!("UPDATE meta SET value = '{NEWEST}' WHERE name = 'oldest_writer'"));
    queue.run(["status", "--format", "ok", "B"]).code(3);
    queue.sql("UPDATE meta SET value = '99' WHERE name = 'oldest_writer'");
    for verb in [&["request", "--format", "ok", "C"][..], &["status", "--format", "ok", "C"], &["dispatch"]] {
        let said = queue.run(verb).code(78);
        assert!(said.err.contains("schema 99") && said.err.contains("newer export-queue"), "{said:?}");
    }
    assert_eq!(queue.sql("SELECT title FROM jobs ORDER BY id"), ["A", "B"]);
    // That of the newest that we know may always be written by us, whatever it says of older ones.
    let known = Queue::on(server::shared(), "");
    known.request("ok", "A");
    known.sql("UPDATE meta SET value = '99' WHERE name = 'oldest_writer'");
    assert_eq!(known.request("ok", "B")["state"], "queued");
}

#[test]
fn tls_is_as_strict_as_sslmode_says() {
    let (server, certificates) = Server::with_tls();
    let database = server.fresh_database();
    let (known, unknown) = (certificates.authority.display(), certificates.stranger.display());
    let mut queue = Queue::on(server, "");
    let config = fs::read_to_string(queue.path("config.toml")).expect("a configuration");
    let (_, rest) = config.split_once('\n').expect("a first line");
    queue.run(["init"]).code(0);
    queue.is_on(server, &server.url(&database));
    fs::remove_file(queue.path("state/queue.id")).expect("it belongs to the first database");
    fs::remove_dir_all(queue.path("cache")).expect("and so does the cache");
    let ask = |host: &str, parameters: &str, roots: Option<String>| {
        let url = format!("postgres://queue@{host}/{database}?hostaddr={}&{parameters}", certificates.address);
        queue.configure(&format!("database = \"{url}\"\n{rest}"));
        let mut command = queue.command(["request", "--format", "ok", "A Book"]);
        command.envs(roots.map(|roots| ("PGSSLROOTCERT", roots)));
        crate::harness::call(&mut command)
    };
    for (host, parameters) in [
        (TLS_NAME, format!("sslmode=verify-full&sslrootcert={known}")),
        ("other.example.org", format!("sslmode=verify-ca&sslrootcert={known}")),
        ("other.example.org", "sslmode=require".to_owned()),
        ("other.example.org", "sslmode=prefer".to_owned()),
    ] {
        ask(host, &parameters, None).code(3);
    }
    ask(TLS_NAME, "sslmode=verify-full", Some(known.to_string())).code(3);
    // Who names a root wants it to be looked at, as with libpq.
    for (host, parameters) in [
        ("other.example.org", format!("sslmode=verify-full&sslrootcert={known}")),
        (TLS_NAME, format!("sslmode=verify-full&sslrootcert={unknown}")),
        (TLS_NAME, format!("sslmode=verify-ca&sslrootcert={unknown}")),
        (TLS_NAME, format!("sslmode=require&sslrootcert={unknown}")),
    ] {
        let refused = ask(host, &parameters, None).code(78);
        assert!(refused.err.contains("TLS does not work"), "{parameters}: {}", refused.err);
    }
    ask(TLS_NAME, "sslmode=verify-full", Some(unknown.to_string())).code(78);
    ask(TLS_NAME, "sslmode=verify-full&sslrootcert=/no/such/file", None).code(78);
    // The server lets nobody in without it.
    ask(TLS_NAME, "sslmode=disable", None).code(78);
    let log = server.log();
    assert!(log.contains("SSL enabled (protocol=TLSv1.3"), "{log}");
}
