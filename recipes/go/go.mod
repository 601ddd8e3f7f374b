module example.org/orders

go 1.25.0

require github.com/jackc/pgx/v5 v5.9.2
