//! Facts about the run, read from the server and the machine.

use sqlx::{AssertSqlSafe, PgPool};

use crate::environment::{BATCH, Environment, Scale, payload};

/// Settings that determine durability and memory.
const SETTINGS: [&str; 7] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
];

/// Name and value.
pub(crate) type Fact = (String, String);

/// Reads the facts that a reader needs to interpret the figures.
pub(crate) async fn read(env: &Environment) -> anyhow::Result<Vec<Fact>> {
    let mut facts: Vec<Fact> = Vec::new();
    let mut add = |what: &str, is: String| facts.push((what.to_owned(), is));
    if env.database.starts_with("postgres") {
        let pool = env.pool(1).await?;
        add("day", ask(&pool, "SELECT to_char(now(), 'YYYY-MM-DD')").await?);
        add("PostgreSQL", ask(&pool, "SHOW server_version").await?);
        let mut settings = Vec::new();
        for name in SETTINGS {
            settings.push(format!("`{name}` = {}", ask(&pool, &format!("SHOW {name}")).await?));
        }
        add("settings", settings.join(", "));
        pool.close().await;
    } else {
        add("database", env.database.split(':').next().unwrap_or_default().to_owned());
    }
    add("outbox", env!("CARGO_PKG_VERSION").to_owned());
    add("machine", machine());
    let built = if cfg!(debug_assertions) { "debug: these figures mean nothing" } else { "release" };
    add("build", built.to_owned());
    add("payload", format!("{} bytes of JSON", payload().to_string().len()));
    add("batch", format!("{BATCH} rows for all contestants, unless noted"));
    let run = if env.scale == Scale::Full { "full" } else { "quick: a fifth of everything" };
    add("run", format!("{run}; {} rounds, all contestants in turns in each", env.rounds));
    Ok(facts)
}

async fn ask(pool: &PgPool, query: &str) -> anyhow::Result<String> {
    Ok(sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(pool).await?)
}

/// Describes the machine: `2 cores (AMD EPYC 7B13), 16 GB, server and clients together`.
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
