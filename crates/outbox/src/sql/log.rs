//! A stand-in for the log, just enough for its pairs: positions and times, no events.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::dialect::{Database, Value};
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::log::{Appended, Condition, Frontier, LogStore, Position, Query, Stored};

fn missing<T>() -> Result<T> {
    Err(Error::Store("the log is not here yet".to_owned()))
}

#[async_trait]
impl<DB: Database> LogStore for SqlStore<DB> {
    async fn append(&self, events: &[Event], _: &Condition) -> Result<Appended> {
        let mut positions = Vec::new();
        for _ in events {
            let next = self.head().await?.get() + 1;
            let insert = "INSERT INTO {log} (position, stored_at) VALUES ($1, {now})";
            self.run(insert, vec![Value::Int(next)]).await?;
            positions.push(Position::new(next));
        }
        Ok(Appended::New(positions))
    }

    async fn read(&self, _: &Query, _: Position, _: Option<Position>, _: usize) -> Result<Vec<Stored>> {
        missing()
    }

    async fn settled(&self, _: &Query) -> Result<Position> {
        missing()
    }

    async fn advance(&self, _: &mut Frontier) -> Result<()> {
        missing()
    }

    async fn head(&self) -> Result<Position> {
        let rows = self.fetch("SELECT {int COALESCE(max(position), 0)} FROM {log}", Vec::new()).await?;
        Ok(Position::new(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default()))
    }

    async fn position_at(&self, time: DateTime<Utc>) -> Result<Position> {
        let text = "SELECT {int COALESCE(max(position), 0)} FROM {log} WHERE stored_at < {time $1}";
        let rows = self.fetch(text, vec![Value::Time(Some(time))]).await?;
        Ok(Position::new(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default()))
    }
}
