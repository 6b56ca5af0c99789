"""Writes the dashboard, deploy/grafana/fastserve.json, from its panels: `python -m deploy.grafana.write`. In Grafana,
import the file (Dashboards > New > Import) and choose the Prometheus that scrapes the services.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ROWS, Panel

DASHBOARD = Path(__file__).with_name("fastserve.json")
WIDTH = 24
PANEL_WIDTH, PANEL_HEIGHT = 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    custom = {
        "fillOpacity": 20 if panel.stacked else 0,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
        "showPoints": "never",
    }
    limits = {"min": 0} | ({} if panel.most is None else {"max": panel.most})
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.what,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom, **limits}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": query.expr,
                "legendFormat": query.legend,
                "datasource": DATASOURCE,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _placed() -> Iterator[dict[str, Any]]:
    """The rows' headings and their panels, three beside each other."""
    number = y = 0
    across = WIDTH // PANEL_WIDTH
    for row in ROWS:
        number += 1
        heading = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": heading}
        y += 1
        for place, panel in enumerate(row.panels):
            number += 1
            yield _panel(number, panel, place % across * PANEL_WIDTH, y + place // across * PANEL_HEIGHT)
        y += -(-len(row.panels) // across) * PANEL_HEIGHT


def _variables() -> list[dict[str, Any]]:
    groups = "label_values(fastserve:jobs, group)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "group",
            "label": "Worker group",
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": groups, "refId": "groups"},
            "definition": groups,
            "refresh": 2,
            "sort": 3,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "uid": "fastserve",
        "title": "FastServe",
        "tags": ["fastserve", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_placed()),
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text(), encoding="utf-8")
