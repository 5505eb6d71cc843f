//! Hearing of new jobs at once, in a session of its own. Behind a pooler in transaction mode nothing is heard; what is heard is
//! only a hint, and whoever waits for it looks by itself all the same.

use std::future::poll_fn;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio_postgres::{AsyncMessage, Error};

use super::place::Place;

/// The pause before a broken session is made anew.
const PAUSE: Duration = Duration::from_secs(5);

/// What is done for each job that is asked for.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// Calls `wake` for each job that is asked for from now on, in a thread that lives as long as this process.
pub(super) fn listen(place: Place, wake: Wake) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().context("preparing to listen")?;
    let listen = move || {
        loop {
            if let Err(error) = runtime.block_on(hear(&place, &wake)) {
                tracing::debug!("not listening for now: {error}");
            }
            thread::sleep(PAUSE);
        }
    };
    thread::Builder::new().name("listen".to_owned()).spawn(listen).context("starting the thread that listens").map(drop)
}

async fn hear(place: &Place, wake: &Wake) -> Result<(), Error> {
    let (client, mut connection) = place.config.connect(place.tls.clone()).await?;
    let told = Arc::clone(wake);
    let hearing = tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(_) = message? {
                told();
            }
        }
        Ok(())
    });
    client.batch_execute(sql!("listen")).await?;
    // For what was asked for before the first word could be heard.
    wake();
    hearing.await.unwrap_or(Ok(()))
}
