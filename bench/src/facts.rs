//! What the figures were taken on: read from the server and the machine, not assumed.

use sqlx::{AssertSqlSafe, PgPool};

use crate::bed::{BATCH, Bed, Scale, payload};

/// Settings that decide what a commit is worth, and what the server may use.
const SETTINGS: [&str; 7] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
];

/// What it is, and how it is.
pub(crate) type Fact = (String, String);

/// What a reader must know before the figures mean anything.
pub(crate) async fn read(bed: &Bed) -> anyhow::Result<Vec<Fact>> {
    let mut facts: Vec<Fact> = Vec::new();
    let mut say = |what: &str, is: String| facts.push((what.to_owned(), is));
    if bed.database.starts_with("postgres") {
        let pool = bed.pool(1).await?;
        say("day", ask(&pool, "SELECT to_char(now(), 'YYYY-MM-DD')").await?);
        say("PostgreSQL", ask(&pool, "SHOW server_version").await?);
        let mut settings = Vec::new();
        for name in SETTINGS {
            settings.push(format!("`{name}` = {}", ask(&pool, &format!("SHOW {name}")).await?));
        }
        say("its settings", settings.join(", "));
        pool.close().await;
    } else {
        say("database", bed.database.split(':').next().unwrap_or_default().to_owned());
    }
    say("outbox", env!("CARGO_PKG_VERSION").to_owned());
    say("machine", machine());
    let built = if cfg!(debug_assertions) { "debug: these figures say nothing" } else { "release" };
    say("build", built.to_owned());
    say("payload", format!("{} bytes of JSON", payload().to_string().len()));
    say("batch", format!("{BATCH} rows, ours and everybody's, where nothing else is said"));
    let run = if bed.scale == Scale::Full { "full" } else { "quick: a fifth of everything" };
    say("run", format!("{run}; {} rounds, all contestants in turns in each", bed.rounds));
    Ok(facts)
}

async fn ask(pool: &PgPool, query: &str) -> anyhow::Result<String> {
    Ok(sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(pool).await?)
}

/// `2 cores (AMD EPYC 7B13), 16 GB, server and clients together`.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let kilobytes: f64 =
        memory.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    let plural = if cores == 1 { "" } else { "s" };
    format!("{cores} core{plural} ({model}), {:.0} GB, server and clients together", kilobytes / 1_048_576.0)
}
