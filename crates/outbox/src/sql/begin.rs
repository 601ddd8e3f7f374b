//! Beginning a transaction, in a way that may be cancelled at any time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::pool::PoolOptions;

use super::dialect::Dialect;
use super::source::{Source, Work};

/// A future that is finished in the background when it is dropped before its end.
pub(crate) struct Finished<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Finished<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Finished<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Finished<F> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// Begins a transaction that is going to write.
pub(super) async fn begin_on<DB: Dialect>(source: &Source<DB>) -> Result<Work<'static, DB>, sqlx::Error> {
    Ok(match source {
        Source::Pool(pool) => Work::Pool(pool.begin(None).await?),
        Source::Line(line) => Work::Line(line.begin().await?),
    })
}

/// How long a connection may have been idle without being asked whether it is still there.
const FRESH: Duration = Duration::from_secs(1);

/// A pool whose connections are asked whether they are still there if they were idle for a while. sqlx asks each time: a round trip
/// more for every statement and every transaction.
pub(super) fn pool<DB: Dialect>(max_connections: u32) -> PoolOptions<DB> {
    let pool = PoolOptions::new().max_connections(max_connections).test_before_acquire(false);
    pool.before_acquire(|conn: &mut DB::Connection, idle| {
        Box::pin(async move {
            if idle.idle_for >= FRESH {
                conn.ping().await?;
            }
            Ok(true)
        })
    })
}
