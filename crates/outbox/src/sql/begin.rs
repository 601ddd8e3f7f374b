//! Begins transactions; the future may be cancelled at any time.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::dialect::Dialect;
use super::source::{Source, Work};
use super::warm::First;

/// A future that completes in the background if it is dropped before its end.
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

/// Begins a writing transaction.
pub(super) async fn begin_on<DB: Dialect>(source: &Source<DB>) -> Result<Work<'static, DB>, sqlx::Error> {
    begin_by(source, None).await
}

/// Begins a writing transaction with statements that are sent together with `BEGIN`.
pub(super) async fn begin_by<DB: Dialect>(
    source: &Source<DB>,
    script: Option<String>,
) -> Result<Work<'static, DB>, sqlx::Error> {
    Ok(match source {
        Source::Pool(pool) => Work::Pool(pool.begin(First { before: None, script }).await?),
        // A connection that is dropped during `begin` is closed.
        Source::Line(line) => Work::Line(line.begin(script).await?),
    })
}
