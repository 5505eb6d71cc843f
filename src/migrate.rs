//! Moves the queue to another database, or says what is where: nothing new starts, what runs may end, then all rows move while
//! the queue is closed for a moment. (What makes that safe stands in `store/moving.rs`.)

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::bind::{self, Home};
use crate::clock;
use crate::exit::Refusal;
use crate::fault;
use crate::store::moving::{Mark, Movable, Moved, Stage, TABLES};

/// How often is looked whether something still runs.
const LOOK: Duration = Duration::from_millis(200);

/// What became of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The queue is in the other database: how many rows of each table.
    Moved(Moved),
    /// A move that was broken off is taken back.
    TakenBack,
}

/// Moves the queue to `target`, the URL of a database or `sqlite`; a move there that was broken off goes on where it was, one
/// that has ended changes nothing, and one to where the queue is takes a move back that was broken off.
///
/// # Errors
/// Exports run for longer than `patience` (75), the other database is not vacant (78), or either cannot be used. The queue is
/// where it was then, and open.
pub fn migrate(home: &Home, target: &str, patience: Duration, tell: &mut dyn FnMut(&str)) -> Result<Done> {
    home.refuse_others()?;
    let lock = home.lock_set_up()?;
    let target = bind::database_of(target)?;
    let (from, to) = (home.engine_name(), home.name_of(target));
    if !home.is_set_up() {
        return Err(Refusal::config("no queue is set up: there is nothing to move"));
    }
    let mut source = home.open_to_move(home.config.database.as_deref())?;
    let done = if from == to {
        take_back(&mut *source, &from).map(|()| Done::TakenBack)
    } else {
        let mut other = home.open_to_move(target)?;
        let mut both = Move { home, source: &mut *source, target: &mut *other, from, to };
        both.run(patience, tell).map(Done::Moved)
    };
    lock.release()?;
    done
}

/// The message of the pauses that a move sets.
fn message(to: &str) -> String {
    format!("moving to {to}")
}

fn end_pauses(store: &mut dyn Movable, message: &str) -> Result<()> {
    for queue in store.paused()? {
        if store.pause_of(&queue)?.is_some_and(|pause| pause.message.as_deref() == Some(message)) {
            store.resume(&queue)?;
        }
    }
    Ok(())
}

fn take_back(source: &mut dyn Movable, here: &str) -> Result<()> {
    let mark = source.mark()?.unwrap_or_else(|| Mark { stage: Stage::Here, id: String::new(), other: String::new() });
    match mark.stage {
        Stage::Here => Err(Refusal::usage(format!("the queue is in {here} already"))),
        Stage::Left | Stage::Arriving => Err(mark.refusal()),
        Stage::Leaving => reopen(source, &mark),
    }
}

fn reopen(source: &mut dyn Movable, leaving: &Mark) -> Result<()> {
    source.open_again(leaving, &leaving.at(Stage::Here))?;
    end_pauses(source, &message(&leaving.other))
}

struct Move<'a> {
    home: &'a Home,
    source: &'a mut dyn Movable,
    target: &'a mut dyn Movable,
    from: String,
    to: String,
}

impl Move<'_> {
    fn run(&mut self, patience: Duration, tell: &mut dyn FnMut(&str)) -> Result<Moved> {
        let begun = self.source.mark()?.filter(|mark| mark.stage != Stage::Here);
        let source = match begun {
            Some(mark) if mark.stage == Stage::Arriving || mark.other != self.to => return Err(mark.refusal()),
            Some(mark) => mark,
            None => self.leave(patience, tell)?,
        };
        let arriving = Mark { stage: Stage::Arriving, id: source.id.clone(), other: self.from.clone() };
        let moved = self.arrive(&source, &arriving)?;
        let leaving = source.at(Stage::Leaving);
        fault::point("migrate.after_arrival")?;
        self.source.go_on(&leaving, &leaving.at(Stage::Left))?;
        fault::point("migrate.after_leaving")?;
        // Only what has left for good may be used elsewhere: the move may have been taken back from another machine.
        match self.source.mark()? {
            Some(mark) if mark == leaving.at(Stage::Left) => {}
            _ => return Err(Refusal::try_later("the move was taken back")),
        }
        self.target.open_again(&arriving, &arriving.at(Stage::Here))?;
        fault::point("migrate.after_opening")?;
        end_pauses(self.target, &message(&self.to))?;
        Ok(moved)
    }

    /// Lets what runs end, and closes the source then.
    fn leave(&mut self, patience: Duration, tell: &mut dyn FnMut(&str)) -> Result<Mark> {
        self.target.refuse_occupied(&self.source.queue_id()?)?;
        let leaving = Mark { stage: Stage::Leaving, id: bind::new_token()?, other: self.to.clone() };
        let message = message(&self.to);
        let waiting = self.source.queues_waiting()?;
        for queue in self.home.config.queue.keys().chain(&waiting) {
            if self.source.pause_of(queue)?.is_none() {
                self.source.pause(queue, Some(&message), clock::now())?;
            }
        }
        fault::point("migrate.before_close")?;
        let closed = self.close(&leaving, patience, tell);
        if closed.is_err() {
            end_pauses(self.source, &message)?;
        }
        closed?;
        fault::point("migrate.after_close")?;
        Ok(leaving)
    }

    /// Closes the source once nothing runs any more.
    fn close(&mut self, leaving: &Mark, patience: Duration, tell: &mut dyn FnMut(&str)) -> Result<()> {
        let until = clock::monotonic() + patience;
        let mut told = 0;
        loop {
            let running = self.source.close(leaving)?;
            if running == 0 {
                return Ok(());
            }
            if clock::monotonic() >= until {
                return Err(Refusal::try_later(format!("{running} exports have not ended: nothing has moved")));
            }
            if running != told {
                tell(&format!("waiting for {running} exports to end; nothing new starts"));
                told = running;
            }
            thread::sleep(LOOK);
        }
    }

    /// Carries the rows over, unless they are there already: what has left is never carried once more.
    fn arrive(&mut self, source: &Mark, arriving: &Mark) -> Result<Moved> {
        let mark = self.target.mark()?;
        if mark.is_some_and(|mark| mark == *arriving || mark == arriving.at(Stage::Here)) {
            return count(self.target);
        }
        if source.stage != Stage::Leaving {
            return Err(source.refusal());
        }
        let arrived = self.target.take_in(self.source, arriving);
        if arrived.is_err() {
            reopen(self.source, source)?;
        }
        arrived
    }
}

fn count(database: &dyn Movable) -> Result<Moved> {
    let rows = |table| {
        let mut rows = 0;
        database.read_out(table, &mut |page| {
            rows += page.len() as u64;
            Ok(())
        })?;
        Ok((table, rows))
    };
    TABLES.iter().map(|table| rows(*table)).collect()
}
