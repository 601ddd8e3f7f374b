//! `outbox status --watch`: samples the state of an outbox repeatedly, with rates of change.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use chrono::{DateTime, SubsecRound as _, Utc};
use outbox::store::{Filter, Status};
use serde::Serialize;

use super::{CurrentState, footer, now};
use crate::output::{Output, exact, json, number, span_of, styled};
use crate::progress::Interrupt;
use crate::target::Target;
use crate::{eprint_escaped, print_escaped};

/// One sample. Rates are relative to the previous sample.
#[derive(Serialize)]
struct Sample {
    at: DateTime<Utc>,
    database: String,
    table: String,
    #[serde(flatten)]
    now: CurrentState,
    /// Rate of events that became DONE, if done events are kept.
    done_per_second: Option<f64>,
    dead_per_second: Option<f64>,
    /// Growth of the backlog; negative if it shrinks.
    pending_per_second: Option<f64>,
    /// Growth of the log.
    log_per_second: Option<f64>,
}

/// Values of a sample that the next sample is compared with.
struct PreviousSample {
    at: Instant,
    pending: u64,
    head: i64,
}

pub(super) async fn run(target: &Target, every: Duration, output: Output) -> Result<ExitCode> {
    let every = every.max(Duration::from_millis(100));
    let mut interrupt = Interrupt::listen();
    let redraws = std::io::stdout().is_terminal() && styled() && !output.json;
    let mut previous = None;
    let mut drawn = 0;
    loop {
        let sample = match take_sample(target, &mut previous).await {
            Ok(sample) => sample,
            // The database was reachable before and may come back: keep watching.
            Err(error) if previous.is_some() => {
                eprint_escaped(format_args!("{} {error:#}", exact(Utc::now().trunc_subsecs(0))));
                drawn = 0;
                if interrupt.wait(every).await {
                    return Ok(ExitCode::SUCCESS);
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        if output.json {
            json(&sample)?;
        } else if redraws {
            let page = page(&sample, output);
            // Moves up to the start of the last page and clears it. Line wrap is off, because a
            // wrapped line would be counted as one.
            let mut out = std::io::stdout().lock();
            if drawn > 0 {
                let _ = write!(out, "\u{1b}[{drawn}A\u{1b}[J");
            }
            let _ = writeln!(out, "\u{1b}[?7l{page}\u{1b}[?7h");
            let _ = out.flush();
            drawn = page.lines().count();
        } else {
            print_escaped(line(&sample));
        }
        if interrupt.wait(every).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

async fn take_sample(target: &Target, previous: &mut Option<PreviousSample>) -> Result<Sample> {
    let now = now(target).await?;
    // Taken right before the counts, to keep the gap between the intervals of two samples small.
    let at = Instant::now();
    let mut sample = Sample {
        at: Utc::now().trunc_subsecs(3),
        database: target.url.to_string(),
        table: target.table.clone(),
        done_per_second: None,
        dead_per_second: None,
        pending_per_second: None,
        log_per_second: None,
        now,
    };
    if let Some(previous) = &*previous {
        let passed = at - previous.at;
        let settled = async |status| {
            let filter = Filter { status: Some(status), settled_within: Some(passed), ..Filter::default() };
            target.store.count(&filter).await.map_err(|error| target.explain(error))
        };
        sample.done_per_second = Some(rate(signed(settled(Status::Done).await?), passed));
        sample.dead_per_second = Some(rate(signed(settled(Status::Dead).await?), passed));
        sample.pending_per_second = Some(rate(signed(sample.now.pending) - signed(previous.pending), passed));
        sample.log_per_second = Some(rate(sample.now.log.head - previous.head, passed));
    }
    *previous = Some(PreviousSample { at, pending: sample.now.pending, head: sample.now.log.head });
    Ok(sample)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Change per second, rounded to a tenth.
#[expect(clippy::cast_precision_loss, reason = "a rate is rounded anyway")]
fn rate(change: i64, passed: Duration) -> f64 {
    (change as f64 / passed.as_secs_f64().max(0.001) * 10.0).round() / 10.0
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))
}

fn waited(now: &CurrentState) -> String {
    now.oldest_due_ms.map_or_else(|| "-".to_owned(), |ms| span_of(Duration::from_millis(ms)))
}

/// One line, for a file or a pipe.
fn line(sample: &Sample) -> String {
    let behind =
        sample.now.log.subscriptions.iter().map(|subscription| subscription.behind).max().unwrap_or(0);
    format!(
        "{} pending {} free {} oldest {} done {} dead {} log {} behind {}",
        exact(sample.at),
        sample.now.pending,
        sample.now.free,
        waited(&sample.now),
        per_second(sample.done_per_second),
        per_second(sample.dead_per_second),
        sample.now.log.head,
        behind
    )
}

/// A page, for a terminal.
fn page(sample: &Sample, output: Output) -> String {
    let now = &sample.now;
    let growing = sample.pending_per_second.map_or_else(String::new, |rate| format!("  ({rate:+.1}/s)"));
    format!(
        "{}, table {}   {}   Ctrl-C to stop\n\n\
         Pending  {}{growing}\n\
         Free     {}\n\
         Oldest   {}\n\
         Done     {}\n\
         Dead     {}\n\
         Appended {}\n\n{}",
        sample.database,
        sample.table,
        sample.at.format("%H:%M:%S UTC"),
        number(now.pending),
        number(now.free),
        waited(now),
        per_second(sample.done_per_second),
        per_second(sample.dead_per_second),
        per_second(sample.log_per_second),
        footer(now, output)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_change_over_time() {
        assert_eq!(rate(30, Duration::from_secs(2)), 15.0);
        assert_eq!(rate(-1, Duration::from_secs(3)), -0.3);
        assert_eq!((per_second(None), per_second(Some(1.25))), ("-".to_owned(), "1.2/s".to_owned()));
    }
}
