//! `outbox status --watch`: the same place again and again, and how fast it changes.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use chrono::{DateTime, SubsecRound as _, Utc};
use outbox::store::{Filter, Status};
use serde::Serialize;

use super::{Now, now, rest};
use crate::open::Place;
use crate::progress::Interrupt;
use crate::show::{Output, exact, json, number, span_of, styled};
use crate::{note, say};

/// One look. Rates are since the one before.
#[derive(Serialize)]
struct Look {
    at: DateTime<Utc>,
    database: String,
    table: String,
    #[serde(flatten)]
    now: Now,
    /// What became DONE, as far as done events are kept.
    done_per_second: Option<f64>,
    dead_per_second: Option<f64>,
    /// How the backlog grows, or shrinks.
    pending_per_second: Option<f64>,
    /// How the log grows.
    log_per_second: Option<f64>,
}

/// What the next look compares with.
struct Before {
    at: Instant,
    pending: u64,
    head: i64,
}

pub(super) async fn run(place: &Place, every: Duration, output: Output) -> Result<ExitCode> {
    let every = every.max(Duration::from_millis(100));
    let mut interrupt = Interrupt::listen();
    let in_place = std::io::stdout().is_terminal() && styled() && !output.json;
    let mut before = None;
    let mut drawn = 0;
    loop {
        let look = match look(place, &mut before).await {
            Ok(look) => look,
            // What was there a moment ago may come back: that is what one watches for.
            Err(error) if before.is_some() => {
                note(format_args!("{} {error:#}", exact(Utc::now().trunc_subsecs(0))));
                drawn = 0;
                if interrupt.within(every).await {
                    return Ok(ExitCode::SUCCESS);
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        if output.json {
            json(&look)?;
        } else if in_place {
            let page = page(&look, output);
            // Up to where the last one began, and away with it. A line that is too long would wrap, and be miscounted.
            let mut out = std::io::stdout().lock();
            if drawn > 0 {
                let _ = write!(out, "\u{1b}[{drawn}A\u{1b}[J");
            }
            let _ = writeln!(out, "\u{1b}[?7l{page}\u{1b}[?7h");
            let _ = out.flush();
            drawn = page.lines().count();
        } else {
            say(line(&look));
        }
        if interrupt.within(every).await {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

async fn look(place: &Place, before: &mut Option<Before>) -> Result<Look> {
    let now = now(place).await?;
    // Right before the counts: the times that two looks count leave out less between them.
    let at = Instant::now();
    let mut look = Look {
        at: Utc::now().trunc_subsecs(3),
        database: place.url.to_string(),
        table: place.table.clone(),
        done_per_second: None,
        dead_per_second: None,
        pending_per_second: None,
        log_per_second: None,
        now,
    };
    if let Some(before) = &*before {
        let passed = at - before.at;
        let settled = async |status| {
            let filter = Filter { status: Some(status), settled_within: Some(passed), ..Filter::default() };
            place.store.count(&filter).await.map_err(|error| place.explain(error))
        };
        look.done_per_second = Some(rate(signed(settled(Status::Done).await?), passed));
        look.dead_per_second = Some(rate(signed(settled(Status::Dead).await?), passed));
        look.pending_per_second = Some(rate(signed(look.now.pending) - signed(before.pending), passed));
        look.log_per_second = Some(rate(look.now.log.head - before.head, passed));
    }
    *before = Some(Before { at, pending: look.now.pending, head: look.now.log.head });
    Ok(look)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// So many a second, to a tenth.
#[expect(clippy::cast_precision_loss, reason = "a rate is rounded anyway")]
fn rate(change: i64, passed: Duration) -> f64 {
    (change as f64 / passed.as_secs_f64().max(0.001) * 10.0).round() / 10.0
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s"))
}

fn waited(now: &Now) -> String {
    now.oldest_due_ms.map_or_else(|| "-".to_owned(), |ms| span_of(Duration::from_millis(ms)))
}

/// For a file or a pipe.
fn line(look: &Look) -> String {
    let behind = look.now.log.pairs.iter().map(|pair| pair.behind).max().unwrap_or(0);
    format!(
        "{} pending {} free {} oldest {} done {} dead {} log {} behind {}",
        exact(look.at),
        look.now.pending,
        look.now.free,
        waited(&look.now),
        per_second(look.done_per_second),
        per_second(look.dead_per_second),
        look.now.log.head,
        behind
    )
}

/// For a terminal.
fn page(look: &Look, output: Output) -> String {
    let now = &look.now;
    let growing = look.pending_per_second.map_or_else(String::new, |rate| format!("  ({rate:+.1}/s)"));
    format!(
        "{}, table {}   {}   Ctrl-C ends\n\n\
         Pending  {}{growing}\n\
         Free     {}\n\
         Oldest   {}\n\
         Done     {}\n\
         Dead     {}\n\
         Appended {}\n\n{}",
        look.database,
        look.table,
        look.at.format("%H:%M:%S UTC"),
        number(now.pending),
        number(now.free),
        waited(now),
        per_second(look.done_per_second),
        per_second(look.dead_per_second),
        per_second(look.log_per_second),
        rest(now, output)
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
