-- Runs of one job that follow one another, jobs that end after a number of runs, and what a run is told of missed ticks.

alter table rota.job
  add column runs_left integer,          -- ticks that may still become runs; null: any number
  add column missed integer default 0;   -- ticks skipped since the last one that became a run; null: too many to count

alter table rota.run
  add column followed boolean not null default false,  -- a buffered run of its job may wait for its end
  add column catchup boolean not null default false,   -- it was claimed late
  add column missed integer default 0;                 -- ticks skipped before it since the last that became a run; null: as above

alter table rota.dead
  add column catchup boolean not null default false,
  add column missed integer default 0;
